"""What a kernel computes as a pattern of ATen operators, and where a compiler's graph holds it.

A pattern is the graph that AOTAutograd makes of the module that a kernel was made for, with
Inductor's decompositions: the same steps that a model takes on its way to Inductor. It is matched
exactly: operators, constants, shapes, strides and dtypes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from kmem.deploy.shipped.sharing import holder_of, make_shell
from kmem.deploy.shipped.table import Entry, load_original

_SKIPPED = ("placeholder", "get_attr", "output")


@dataclass(frozen=True)
class Pattern:
    """One entry's graph on one device; placeholders are its tensors, then its state."""

    entry: Entry
    graph: fx.Graph

    @property
    def inputs(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[fx.Node]:
        return list(self.graph.output_node().args[0])

    @property
    def size(self) -> int:
        return sum(node.op not in _SKIPPED for node in self.graph.nodes)


def make_pattern(entry: Entry, device: torch.device) -> Pattern:
    """The pattern of an entry, from the module in its evidence; on fake tensors.

    Raises PackageError, CannotShare: if the evidence is damaged or its module cannot be made; and
    whatever torch raises where it cannot trace the module.
    """
    from torch._inductor.decomposition import select_decomp_table

    module = make_shell(entry, load_original(entry).Model)
    places = [holder_of(module, each.name) for each in entry.state]
    kept: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        kept.append(graph)
        return graph.forward

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        inputs = [next(given) if each.is_tensor else each.value for each in entry.inputs]
        for (holder, name), tensor in zip(places, given, strict=True):
            holder[name] = tensor
        found = module(*inputs)
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    with FakeTensorMode(), torch.no_grad():
        tensors = [
            torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=device)
            for each in entry.inputs
            if each.is_tensor
        ]
        tensors += [
            torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=device)
            for each in entry.state
        ]
        aot_function(call, keep, inference_compiler=keep, decompositions=select_decomp_table())(
            *tensors
        )
    return Pattern(entry, kept[0].graph)


class Match:
    """One place in a graph where a pattern might be; true if it is."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.bound: dict[fx.Node, fx.Node] = {}
        self.reason = ""  # why it is not

    def __bool__(self) -> bool:
        return not self.reason

    @property
    def inputs(self) -> list[fx.Node]:
        return [self.bound[node] for node in self.pattern.inputs]

    @property
    def outputs(self) -> list[fx.Node]:
        return [self.bound[node] for node in self.pattern.outputs]

    @property
    def nodes(self) -> set[fx.Node]:
        """What the kernel computes."""
        return {mine for theirs, mine in self.bound.items() if theirs.op not in _SKIPPED}

    def bind(self, theirs: fx.Node, mine: Any) -> bool:
        """Whether a node stands for one of the pattern's; `reason` says why not."""
        if theirs in self.bound:
            return self.bound[theirs] is mine or self._refuse(f"{mine} is another value")
        if not isinstance(mine, fx.Node):
            return self._refuse(f"{mine!r} is no tensor")
        if theirs.op == "placeholder":
            self.bound[theirs] = mine
            return self._is_like(theirs, mine)
        if (theirs.op, theirs.target) != (mine.op, mine.target) or theirs.op != "call_function":
            return self._refuse(f"{mine.target} is not the {theirs.target} of the kernel's module")
        self.bound[theirs] = mine
        return self._bind_argument(theirs.args, mine.args, mine) and self._bind_argument(
            theirs.kwargs, mine.kwargs, mine
        )

    def _refuse(self, reason: str) -> bool:
        self.reason = self.reason or reason
        return False

    def _is_like(self, theirs: fx.Node, mine: fx.Node) -> bool:
        wanted, found = theirs.meta["val"], mine.meta.get("val")
        if not isinstance(found, torch.Tensor):
            return self._refuse(f"{mine} is no tensor")
        if found.dtype != wanted.dtype or found.device != wanted.device:
            return self._refuse(
                f"{mine} is {found.dtype} on {found.device}, the kernel is for {wanted.dtype}"
            )
        for what in ("shape", "stride"):
            sizes = [tuple(t.shape if what == "shape" else t.stride()) for t in (found, wanted)]
            is_same = len(sizes[0]) == len(sizes[1]) and all(
                statically_known_true(a == b) for a, b in zip(*sizes, strict=True)
            )
            if not is_same:
                return self._refuse(f"{mine} has {what} {sizes[0]}, the kernel is for {sizes[1]}")
        return True

    def _bind_argument(self, theirs: Any, mine: Any, user: fx.Node) -> bool:
        if isinstance(theirs, fx.Node):
            return self.bind(theirs, mine)
        if isinstance(theirs, list | tuple):
            return (isinstance(mine, list | tuple) and len(mine) == len(theirs)) and all(
                self._bind_argument(a, b, user) for a, b in zip(theirs, mine, strict=True)
            )
        if isinstance(theirs, dict):
            return theirs.keys() == mine.keys() and all(
                self._bind_argument(value, mine[key], user) for key, value in theirs.items()
            )
        if type(theirs) is type(mine) and theirs == mine:
            return True
        return self._refuse(f"{user} has {mine!r} where the kernel's module has {theirs!r}")

    def complete(self) -> bool:
        """Whether nothing else needs what the kernel keeps to itself, and its place is plain."""
        nodes, outputs = self.nodes, set(self.outputs)
        for node in nodes - outputs:
            others = [user for user in node.users if user not in nodes]
            if others:
                return self._refuse(f"{node} is needed by {others[0]} too, as for gradients")
        order = {node: place for place, node in enumerate(next(iter(nodes)).graph.nodes)}
        last = max(outputs, key=order.__getitem__)
        users = [user for node in outputs for user in node.users if user not in nodes]
        if any(order[user] < order[last] for user in users):
            return self._refuse("its outputs are needed before all of them are made")
        return True

    @property
    def last(self) -> fx.Node:
        """The output behind which the kernel's call goes."""
        order = {node: place for place, node in enumerate(self.outputs[0].graph.nodes)}
        return max(self.outputs, key=order.__getitem__)


def find_matches(pattern: Pattern, graph: fx.Graph) -> Iterator[Match]:
    """Places that end as the pattern ends, from the graph's end on; true ones do not overlap.

    The caller may replace a match before it asks for the next.
    """
    first, *others = pattern.outputs
    taken: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.target != first.target or node in taken:
            continue
        match = Match(pattern)
        if match.bind(first, node):
            for output in others:
                _bind_any(match, output, graph)
        if match and not match.nodes & taken and match.complete():
            taken |= match.nodes
        yield match


def _bind_any(match: Match, output: fx.Node, graph: fx.Graph) -> None:
    """Bind a further output to the first node that fits what is bound already."""
    if output in match.bound:
        return
    before = dict(match.bound)
    for node in graph.nodes:
        match.bound, match.reason = dict(before), ""
        if node.op == "call_function" and match.bind(output, node):
            return
    match.reason = f"no value is its output {output}"
