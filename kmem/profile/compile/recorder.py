"""What one forward launches, recorded while it only compiles.

`Recorder` keeps the launches of one forward and a hash of what they do. `record_launches` turns
every Triton launch of this process into a compilation that is recorded; `VendorOperators` records
every torch operator that would launch a vendor's kernel, which computes shapes only.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from triton import FutureKernel
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kmem.host.kernel_identity import describe_globals, describe_value, identify_function
from kmem.host.own_operators import own_body
from kmem.profile.compile.sass import count_instructions, disassemble, read_resources
from kmem.profile.compile.target_driver import tool_paths
from kmem.profile.compile.ttir import count_program_work, list_products
from kmem.profile.vendor import vendor_share

#: Operators that launch no kernel: they allocate, alias or ask.
_FREE = """
empty empty_like empty_strided new_empty new_empty_strided detach alias view _unsafe_view
_reshape_alias as_strided t transpose permute expand slice select unsqueeze squeeze split
split_with_sizes chunk unbind lift_fresh is_pinned sym_size sym_stride sym_numel narrow unfold
_assert_tensor_metadata
"""
_FREE_OPERATORS = frozenset(f"aten.{name}" for name in _FREE.split())
#: What was read out of binaries, by their digest: a verdict compiles again what was compiled for
#: the estimate.
_figures: dict[str, dict[str, float]] = {}


class Recorder:
    """The launches of one forward, in order, and a hash of what they do.

    Args:
        directory: where binaries are put for the disassembler.
        capability: what the kernels are compiled for: 90.
    """

    def __init__(self, directory: Path, capability: int) -> None:
        self.launches: list[dict[str, Any]] = []
        # what Triton compiled, the metrics of its launch, and the integers that it was given
        self._compiled: list[tuple[Any, dict[str, float], dict[str, int]]] = []
        self._digest = hashlib.sha256()
        # launches whose kernels may still have to be compiled, and all after them
        self._open: list[Callable[[], None]] = []
        self._directory = directory
        self._capability = capability

    @property
    def ptx_hash(self) -> str:
        """The hash of what was launched: modules with equal hashes do the same."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Forget the launches of the forward before."""
        self.launches = []
        self._compiled = []
        self._open = []
        self._digest = hashlib.sha256()

    def settle(self) -> None:
        """Take over what was launched, once every kernel is compiled."""
        for take_over in self._open:
            take_over()
        self._open = []

    def add_vendor(self, operator: str, metrics: dict[str, float], scalars: list[str]) -> None:
        """Add the launch of a vendor's kernel."""
        launch = {"name": operator, "grid": None, "block": None, "metrics": metrics}
        self._open.append(partial(self._add, launch, operator, scalars))

    def add_compiled(
        self, function: Any, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]
    ) -> None:
        """Add one launch of a kernel that Triton compiled, or is about to."""
        metrics = {"static__argument_bytes": float(_argument_bytes(arguments))}
        for parameter in function.params:
            value = arguments.get(parameter.name)
            if parameter.is_constexpr and isinstance(value, int | float):
                metrics[f"constexpr__{parameter.name}"] = float(value)
        integers = {name: value for name, value in arguments.items() if type(value) is int}
        given = {name: describe_value(value) for name, value in arguments.items()}
        read = describe_globals(function.fn)
        launch = {
            "grid": (*grid, 1, 1, 1)[:3],
            "metrics": metrics,
            "identity": identify_function(function.fn),
            "arguments": {**given, **read},
            "constants": [*read, *(each.name for each in function.params if each.is_constexpr)],
        }
        scalars = [repr(value) for value in arguments.values() if isinstance(value, int | float)]
        self._open.append(partial(self._complete, kernel, launch, integers, scalars))

    def _complete(
        self, kernel: Any, launch: dict[str, Any], integers: dict[str, int], scalars: list[str]
    ) -> None:
        """Add a launch with what its kernel came to."""
        if isinstance(kernel, FutureKernel):
            kernel = kernel.result()
        metadata, metrics = kernel.metadata, launch["metrics"]
        metrics["static__shared_bytes_per_block"] = float(metadata.shared)
        metrics["static__num_warps"] = float(metadata.num_warps)
        metrics["static__num_stages"] = float(metadata.num_stages)
        launch["name"] = metadata.name
        launch["block"] = (metadata.num_warps * 32, 1, 1)
        launch["products"] = list_products(kernel.asm["ttir"])
        self._compiled.append((kernel, metrics, integers))
        self._add(launch, strip_debug(kernel.asm["ptx"]), scalars)

    def _add(self, launch: dict[str, Any], code: str, scalars: list[str]) -> None:
        """Add a launch, and to the hash what makes it differ: code, sizes and scalar arguments."""
        self.launches.append(launch)
        self._digest.update(
            json.dumps(
                [code, launch["grid"], launch["metrics"]["static__argument_bytes"], scalars]
            ).encode()
        )

    def read_binaries(self) -> None:
        """Add to launches what their binaries hold: one disassembler reads those of all of them.

        What was read is kept by binary, also for the problems that this process is set up for
        later.

        Raises:
            ProfilerError: if a tool fails.
        """
        cubins = [kernel.asm["cubin"] for kernel, _, _ in self._compiled]
        digests = [hashlib.sha256(cubin).hexdigest() for cubin in cubins]
        new = {
            digest: cubin
            for digest, cubin in zip(digests, cubins, strict=True)
            if digest not in _figures
        }
        if new:
            cuobjdump, nvdisasm = tool_paths()
            file = self._directory / f"kernels_{os.getpid()}"
            listings = disassemble(list(new.values()), self._capability, nvdisasm, file)
            for (digest, cubin), listing in zip(new.items(), listings, strict=True):
                file.write_bytes(cubin)
                _figures[digest] = {
                    **read_resources(file, cuobjdump),
                    **count_instructions(listing),
                }
                file.unlink()
        for digest, (kernel, metrics, integers) in zip(digests, self._compiled, strict=True):
            metrics.update(_figures[digest])
            metrics.update(count_program_work(kernel.asm["ttir"], integers))


class VendorOperators(TorchDispatchMode):
    """Records every operator that would launch a vendor's kernel, with its bytes and FLOPs.

    Args:
        tf32: whether fp32 products may run as TF32, as the contract says; convolutions always may.
    """

    def __init__(self, recorder: Recorder, *, tf32: bool) -> None:
        super().__init__()
        self._recorder = recorder
        self._tf32 = tf32

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler, which takes a second, and nothing here compiles."""
        return False

    # torch's own signature
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if (body := own_body(func)) is not None:
            with self:  # what it is made of is recorded
                return body(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if str(func.overloadpacket) not in _FREE_OPERATORS:
            metrics = _vendor_metrics(func, args, kwargs or {}, result)
            metrics["static__vendor_share"] = vendor_share(str(func), args)
            if "static__flops" in metrics and (self._tf32 or "convolution" in str(func)):
                metrics["static__tf32"] = 1.0
            scalars = [
                str(leaf) for leaf in _leaves([args, kwargs]) if not isinstance(leaf, torch.Tensor)
            ]
            self._recorder.add_vendor(str(func), metrics, scalars)
        return result


def _vendor_metrics(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object
) -> dict[str, float]:
    tensors = {
        id(leaf): leaf for leaf in _leaves([args, kwargs, result]) if isinstance(leaf, torch.Tensor)
    }
    metrics = {
        "static__library": 1.0,
        "static__argument_bytes": float(
            sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        ),
    }
    counter = flop_registry.get(func.overloadpacket)
    if counter is not None:
        metrics["static__flops"] = float(counter(*args, **kwargs, out_val=result))
        item_bytes = (
            tensor.element_size() for tensor in tensors.values() if tensor.is_floating_point()
        )
        metrics["static__item_bytes"] = float(next(item_bytes, 4))
    return metrics


def _leaves(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def _argument_bytes(arguments: dict[str, Any]) -> int:
    """Bytes of a launch's tensors; of several views of one storage the largest counts."""
    storages: dict[int, int] = {}
    for value in arguments.values():
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()._cdata
            size = value.numel() * value.element_size()
            storages[storage] = max(size, storages.get(storage, 0))
    return sum(storages.values())


def strip_debug(ptx: str) -> str:
    """PTX without comments, source lines and debug sections.

    These name the candidate's file, and differ where the code does not.
    """
    code = re.sub(
        r"^\s*\.section\s+\.debug_\w+\s*\{.*?^\s*\}", "", ptx, flags=re.MULTILINE | re.DOTALL
    )
    code = re.sub(r"^\s*\.(loc|file)\b.*$", "", code, flags=re.MULTILINE)
    code = re.sub(r"//.*$|^\$L__tmp\d+:$", "", code, flags=re.MULTILINE)
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def record_launches(recorder: Recorder) -> Callable[[], None]:
    """Turn every launch of this process into a compilation that is recorded.

    Returns:
        What undoes it.
    """
    original, original_autotuner = JITFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        named = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        bound = self.signature.bind_partial(*args, **named)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        resolved = grid(arguments) if callable(grid) else grid
        recorder.add_compiled(self, kernel, tuple(int(size) for size in resolved), arguments)
        return kernel

    def run_first_configuration(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **{**self.configs[0].all_kwargs(), **kwargs})

    def restore() -> None:
        JITFunction.run, Autotuner.run = original, original_autotuner

    JITFunction.run, Autotuner.run = run, run_first_configuration
    return restore
