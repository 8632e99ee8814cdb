"""Which element of a graph value belongs to an index of a scan, through flips, slices and paddings.

scan_matching.py walks over the operators; here stands what each of them does to a view.
"""

from dataclasses import dataclass, replace

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Fill, Layout
from kmem.problem.operators.table import find_operator, lowering_of

#: The number with which a scan may begin without changing what follows.
IDENTITY = {"sum": 0.0, "prod": 1.0}


@dataclass(frozen=True, slots=True)
class View:
    """Element of a value for index i of the scan's space: signs * i + offsets per dimension, for
    positions low..high of the scan.
    """

    signs: tuple[int, ...]
    offsets: tuple[int, ...]
    low: int
    high: int

    def move(self, dim: int, start: int) -> "View":
        """The view of the value from which a slice from `start` was taken."""
        offsets = list(self.offsets)
        offsets[dim] += start
        return replace(self, offsets=tuple(offsets))

    def flip(self, dim: int, size: int) -> "View":
        """The view of the value that was flipped along a dimension of this size."""
        signs, offsets = list(self.signs), list(self.offsets)
        signs[dim], offsets[dim] = -signs[dim], size - 1 - offsets[dim]
        return replace(self, signs=tuple(signs), offsets=tuple(offsets))

    def within(self, dim: int, start: int, end: int) -> "View":
        """The view of a value that stands at start..end of a padded one along the scan."""
        offset = self.offsets[dim]
        low, high = start - offset, end - offset
        if self.signs[dim] < 0:
            low, high = offset - end + 1, offset - start + 1
        moved = self.move(dim, -start)
        return replace(moved, low=max(self.low, low), high=min(self.high, high))


@dataclass(frozen=True, slots=True)
class Place:
    """What layout operators did to a scan's result: how many positions there are, how many
    identities stand first, which dimensions turned.
    """

    length: int
    padding: int = 0
    flipped: frozenset[int] = frozenset()

    def entry(self, view: View, dim: int, shape: list[int]) -> View:
        """The scan's input as seen from a position of the result: without the padding, turned round
        where the result is flipped.
        """
        padding = min(self.padding, self.length)
        for other in self.flipped - {dim}:
            view = view.flip(other, shape[other])
        if dim not in self.flipped:
            return replace(view.move(dim, -self.padding), low=padding)
        turned = view.flip(dim, self.length - self.padding)
        return replace(turned, high=self.length - padding)


def slice_of(graph: OpGraph, node: Node) -> tuple[int, int, int] | None:
    """(dimension, start, end) of a narrow or a slice with step 1; None for anything else."""
    operator = find_operator(node.target)
    if operator is None or operator.lowering not in (Layout.NARROW, Layout.SLICE):
        return None
    call = operator.call(graph, node)
    if call.value("x") is None:
        return None
    shape = call.spec("x").shape
    dim = call["dim"] % len(shape)
    start = call["start"]
    if operator.lowering is Layout.NARROW:
        if not all(isinstance(value, int) for value in node.args[1:]):
            return None
        start += shape[dim] if start < 0 else 0
        return dim, start, start + call["length"]
    if call["step"] != 1:
        return None
    start, end, _ = slice(start, call["end"]).indices(shape[dim])
    return dim, start, max(start, end)


@dataclass(frozen=True, slots=True)
class Paddings:
    """Concatenations that put identities beside a value along a scan."""

    graph: OpGraph
    kind: str  # of the scan
    dim: int
    rank: int

    def beside(self, cat: Node, name: str, *, at_end: bool) -> int | None:
        """How many identities a cat of two puts before a value, or behind it with `at_end`.

        Returns: None if the node does something else.
        """
        parts = self._parts(cat)
        if parts is None:
            return None
        value, constant = parts if at_end else parts[::-1]
        filler = self.graph.node(constant)
        fill = None if filler is None else lowering_of(self.graph, filler)
        is_identity = isinstance(fill, Fill) and fill.number == IDENTITY[self.kind]
        if value != name or not is_identity or len(filler.spec.shape) != self.rank:
            return None
        return filler.spec.shape[self.dim]

    def _parts(self, cat: Node) -> tuple[str, str] | None:
        """The two values that a node joins along the scan."""
        if lowering_of(self.graph, cat) is not Layout.CONCATENATE:
            return None
        call = find_operator(cat.target).call(self.graph, cat)
        parts = call["tensors"]
        is_pair = isinstance(parts, tuple) and len(parts) == 2
        if not is_pair or not all(isinstance(part, Ref) for part in parts):
            return None
        if call["dim"] % self.rank != self.dim:
            return None
        return parts[0].name, parts[1].name

    def range_of(self, cat: Node) -> tuple[str, int, int] | None:
        """(value, start, end) of the value among identities; None if the node is no padding."""
        for name in self._parts(cat) or ():
            length = self.graph.spec(name).shape[self.dim]
            before = self.beside(cat, name, at_end=False)
            if before is not None:
                return name, before, before + length
            if self.beside(cat, name, at_end=True) is not None:
                return name, 0, length
        return None
