"""`torch.compile(model, backend="kmem")`: Inductor, with kernels for what they compute.

Kernels come from what the options name, from installed packages (`kmem install`), and from the
winners of this machine's own runs, which `"memory": False` leaves out:

    torch.compile(model, backend="kmem", options={"packages": [package_or_result, "DIR"]})

Every other option and every mode is Inductor's own. torch finds the backend by the entry point
group `torch_dynamo_backends`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._inductor import list_mode_options
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from kmem.deploy.installed import installed_entries
from kmem.deploy.remembered import remembered_entries
from kmem.deploy.shipped.inductor import KernelPass, Replacement
from kmem.deploy.shipped.ops import operator_name
from kmem.deploy.shipped.table import Entry
from kmem.deploy.sources import entries_from

_PASS = "joint_custom_pre_pass"
_passes: dict[tuple[str, ...], KernelPass] = {}


class Both(CustomGraphPass):
    """The pass that a user has set, then ours."""

    def __init__(self, theirs: CustomGraphPass, ours: KernelPass) -> None:
        self._passes = (theirs, ours)

    def __call__(self, graph: fx.Graph) -> None:
        for each in self._passes:
            each(graph)

    def uuid(self) -> object:
        marks = tuple(each.uuid() for each in self._passes)
        return None if None in marks else marks


def compile_graph(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's as Inductor does, with kernels where they fit.

    Args:
        options: Inductor's; `packages`: what `kmem.apply` takes, beside what is installed; and
            `memory`: whether the winners of this machine's runs are used (default: True).
        mode: Inductor's, such as reduce-overhead.

    Raises OutputError: if something in `packages` is no package and no run.
    """
    settings = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    given = entries_from(settings.pop("packages", ()))
    remembered = remembered_entries(graph) if settings.pop("memory", True) else ()
    ours = _pass_of((*given, *installed_entries(), *remembered))
    theirs = settings.get(_PASS) or torch._inductor.config.joint_custom_pre_pass
    settings[_PASS] = Both(theirs, ours) if theirs is not None else ours
    return compile_fx(graph, inputs, config_patches=settings)


def _pass_of(entries: tuple[Entry, ...]) -> KernelPass:
    """One pass for the same entries, each once: graphs of one model share its patterns."""
    by_name: dict[str, Entry] = {}
    for entry in entries:
        by_name.setdefault(operator_name(entry), entry)
    key = tuple(by_name)
    if key not in _passes:
        _passes[key] = KernelPass(tuple(by_name.values()))
    return _passes[key]


def compile_report() -> list[Replacement]:
    """What the backend did so far in this process: each entry in each graph, and why not."""
    return [each for kernel_pass in _passes.values() for each in kernel_pass.report]
