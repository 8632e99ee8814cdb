"""A pass for Inductor that puts kernels where a graph computes what they compute.

    torch._inductor.config.joint_custom_pre_pass = KernelPass(entries)

It works on the graph as AOTAutograd hands it over, before Inductor changes it. In training a part
is replaced only if its inner values are not needed for gradients; all else is left to Inductor.
What was replaced and why not is logged: `TORCH_LOGS=<this package>`, and kept in `report`.
"""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import getitem
from pathlib import Path

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from kmem.deploy.shipped.ops import operator, operator_name
from kmem.deploy.shipped.patterns import Match, Pattern, find_matches, make_pattern
from kmem.deploy.shipped.supports import devices_for
from kmem.deploy.shipped.table import Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Replacement:
    """What became of one entry in one graph."""

    entry: str
    count: int  # how many parts of the graph call its kernel now
    reason: str  # why not more; empty where no part came near

    def __str__(self) -> str:
        if self.count:
            text = f"{self.entry}: replaced {self.count} part{'s' if self.count > 1 else ''}"
            return f"{text}; another not: {self.reason}" if self.reason else text
        return f"{self.entry}: not replaced, {self.reason or 'nothing of the kind is computed'}"


class KernelPass(CustomGraphPass):
    """Replaces what entries' kernels compute; larger patterns first."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.report: list[Replacement] = []  # of every graph so far
        self._patterns: dict[tuple[str, torch.device], Pattern | str] = {}

    def uuid(self) -> str:
        """What code in Inductor's cache depends on: the kernels, and how they are found.

        The operators are registered here: code from the cache calls them, and no pass runs for it.
        """
        digest = hashlib.sha256()
        for name in ("inductor.py", "patterns.py", "ops.py"):
            digest.update(Path(__file__).with_name(name).read_bytes())
        for entry in self.entries:
            digest.update(operator_name(entry).encode())
            devices = devices_for(entry)
            digest.update(repr(devices).encode())
            if devices:
                with suppress(Exception):  # whatever refuses it does so again, and is reported
                    operator(entry)
        return digest.hexdigest()

    def __call__(self, graph: fx.Graph) -> None:
        device = _device_of(graph)
        if device is None:
            return
        patterns: list[Pattern] = []
        for entry in self.entries:
            pattern = self._pattern(entry, device)
            if isinstance(pattern, str):
                self._note(Replacement(entry.name, 0, pattern))
            else:
                patterns.append(pattern)
        for pattern in sorted(patterns, key=lambda each: -each.size):
            self._replace_all(pattern, graph)

    def _replace_all(self, pattern: Pattern, graph: fx.Graph) -> None:
        count = nearest = 0
        reason = ""
        for match in find_matches(pattern, graph):
            if match:
                match.reason = _replace(match, graph)
            if match:
                count += 1
            elif len(match.bound) > nearest:
                nearest, reason = len(match.bound), match.reason
        if count:
            graph.lint()
        self._note(Replacement(pattern.entry.name, count, reason))

    def _pattern(self, entry: Entry, device: torch.device) -> Pattern | str:
        """The pattern of an entry, or why there is none."""
        if (device.type, device.index) not in devices_for(entry):
            return f"it was verified on {entry.device}, the graph is on {device}"
        key = (operator_name(entry), device)
        if key not in self._patterns:
            try:
                operator(entry)  # refused here if it cannot be one
                self._patterns[key] = make_pattern(entry, device)
            except Exception as ex:  # noqa: BLE001  # damaged files; what torch cannot trace
                text = str(ex).strip().splitlines()
                self._patterns[key] = f"{type(ex).__name__}: {text[0] if text else ''}"
        return self._patterns[key]

    def _note(self, replacement: Replacement) -> None:
        self.report.append(replacement)
        logger.info("%s", replacement)


def _device_of(graph: fx.Graph) -> torch.device | None:
    """The device of a graph's tensors: the first that is not the CPU, if there is one."""
    values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return max(devices, key=lambda device: device.type != "cpu", default=None)


def _replace(match: Match, graph: fx.Graph) -> str:
    """Call the kernel in the place of a match; why not, if it would come out otherwise."""
    known = operator(match.pattern.entry)
    inputs, outputs = match.inputs, match.outputs
    given = tuple(node.meta["val"] for node in inputs)
    with given[0].fake_mode, torch.no_grad():
        found = known.overload(*given)
    values = found if isinstance(found, tuple | list) else (found,)
    for node, value in zip(outputs, values, strict=True):
        before = node.meta["val"]
        if (value.shape, value.stride(), value.dtype) != (
            before.shape,
            before.stride(),
            before.dtype,
        ):
            return f"{node} would have strides {value.stride()}, not {before.stride()}"
    with graph.inserting_after(match.last):
        call = graph.call_function(known.overload, tuple(inputs))
    # Inductor gives an operator its inputs with these strides
    call.meta = {**match.last.meta, "val": found, "eager_input_vals": (given, {})}
    made = [call]
    if len(outputs) > 1:
        with graph.inserting_after(call):
            made = [
                graph.call_function(getitem, (call, place))
                for place in reversed(range(len(outputs)))
            ][::-1]
        for node, value in zip(made, values, strict=True):
            node.meta = {**call.meta, "val": value}
            del node.meta["eager_input_vals"]
    for old, new in zip(outputs, made, strict=True):
        old.replace_all_uses_with(new)
    for node in reversed([node for node in graph.nodes if node in match.nodes]):
        if not node.users:
            graph.erase_node(node)
    return ""
