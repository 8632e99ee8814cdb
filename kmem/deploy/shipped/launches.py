"""A kernel's launches as torch can trace them, so that a compiler sees through the operator.

What is traced is a second copy of the kernel's file, whose Triton functions are wrapped by
`torch.library.wrap_triton` and whose launches go through Triton's own front door, not through
handles of compiled kernels, which need addresses of memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kmem.deploy.shipped.table import Entry, load_module

_LAUNCH = "triton_kernel_wrapper_mutation"


def traceable_kernel(entry: Entry) -> type[nn.Module]:
    """ModelNew of the copy whose launches can be traced."""
    from triton.runtime.jit import JITFunction

    module, verified = load_module(entry, "traced"), load_module(entry, "kernel")
    # the verified file's own functions: what they call, they find there as Triton wants it
    wrapped = {
        id(value): (name, torch.library.wrap_triton(getattr(verified, name)))
        for name, value in vars(module).items()
        if isinstance(value, JITFunction)
    }
    for value in list(vars(module).values()):
        if type(value).__name__ == "_Launch" and id(value.kernel) in wrapped:
            value.kernel = wrapped[id(value.kernel)][1]
    for name, launched in wrapped.values():
        setattr(module, name, launched)
    if hasattr(module, "_Launch"):  # what kmem emits: in others the names may mean anything
        module._key = _no_handle
        module._parts = _tensors_apart
    return module.ModelNew


def _no_handle(*tensors: torch.Tensor) -> None:
    """What emitted launchers ask for a handle's key: none, they go through Triton's front door."""


def _tensors_apart(
    scratch: torch.Tensor, layout: Sequence[tuple[int, int, torch.dtype]], key: None
) -> list[torch.Tensor]:
    """What emitted launchers ask for as parts of one allocation: an allocation each.

    Kernels on bytes that were cut and viewed as another type ended in illegal memory accesses under
    Inductor (torch 2.11, H200), for which such a view is a tensor of its own.
    """
    return [scratch.new_empty((end - start) // of.itemsize, dtype=of) for start, end, of in layout]


def can_trace(entry: Entry, launch: Callable[..., Any], tensors: list[torch.Tensor]) -> bool:
    """Whether torch traces the launches to what the table says, on fake tensors on a GPU.

    Args:
        entry: whose outputs are expected.
        launch: what a compiler would trace.
        tensors: inputs and state, of any device; only shapes, strides and dtypes are read.
    """
    import triton

    try:
        triton.runtime.driver.active.get_current_target()  # without it torch takes all for written
        with FakeTensorMode(), torch.no_grad():
            given = [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda")
                for t in tensors
            ]
            graph = make_fx(launch)(*given)
            found = graph.graph.output_node().args[0]
    except Exception:  # noqa: BLE001  # whatever a kernel does that cannot be traced
        return False
    nodes = list(graph.graph.nodes)
    outputs = found if isinstance(found, list | tuple) else [found]
    values = [node.meta.get("val") for node in outputs if isinstance(node, torch.fx.Node)]
    given = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    memory = {value.untyped_storage()._cdata for value in given}
    return (
        any(getattr(node.target, "__name__", "") == _LAUNCH for node in nodes)
        and len(values) == len(entry.outputs)
        and all(
            tuple(value.shape) == each.shape
            and tuple(value.stride()) == each.stride
            and value.dtype == each.dtype
            for value, each in zip(values, entry.outputs, strict=True)
        )
        and not any(value.untyped_storage()._cdata in memory for value in values)
    )
