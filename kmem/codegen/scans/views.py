"""Which element of a graph value belongs to an index of a scan, through flips, slices and paddings.

matching.py walks over the operators; here stands what each of them does to a view.
"""

import math
from dataclasses import dataclass, replace

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Fill, Layout
from kmem.problem.operators.table import find_operator, lowering_of

#: The number with which a scan may begin without changing what follows.
IDENTITY = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range along one dimension; `end` is behind it."""

    dim: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """How many elements there are."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class View:
    """Which element of a value belongs to an index of the scan's space.

    For index i it is signs * i + offsets per dimension, for positions low..high of the scan.
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

    def within(self, bounds: Bounds) -> "View":
        """The view of a value that stands within bounds of a padded one along the scan."""
        offset = self.offsets[bounds.dim]
        low, high = bounds.start - offset, bounds.end - offset
        if self.signs[bounds.dim] < 0:
            low, high = offset - bounds.end + 1, offset - bounds.start + 1
        moved = self.move(bounds.dim, -bounds.start)
        return replace(moved, low=max(self.low, low), high=min(self.high, high))


@dataclass(frozen=True, slots=True)
class Place:
    """What layout operators did to a scan's result.

    That is how many positions there are, how many identities stand first, and which dimensions
    turned.
    """

    length: int
    padding: int = 0
    flipped: frozenset[int] = frozenset()

    def entry(self, view: View, dim: int, shape: list[int]) -> View:
        """The scan's input as seen from a position of the result.

        The padding is taken off, and what was flipped is turned round.
        """
        padding = min(self.padding, self.length)
        for other in self.flipped - {dim}:
            view = view.flip(other, shape[other])
        if dim not in self.flipped:
            return replace(view.move(dim, -self.padding), low=padding)
        turned = view.flip(dim, self.length - self.padding)
        return replace(turned, high=self.length - padding)


def slice_of(graph: OpGraph, node: Node) -> Bounds | None:
    """What a narrow or a slice with step 1 keeps; None for anything else."""
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
        return Bounds(dim, start, start + call["length"])
    if call["step"] != 1:
        return None
    start, end = slice(start, call["end"]).indices(shape[dim])[:2]
    return Bounds(dim, start, max(start, end))


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

    def range_of(self, cat: Node) -> tuple[str, Bounds] | None:
        """The value among identities, and where it stands; None if the node is no padding."""
        for name in self._parts(cat) or ():
            length = self.graph.spec(name).shape[self.dim]
            before = self.beside(cat, name, at_end=False)
            if before is not None:
                return name, Bounds(self.dim, before, before + length)
            if self.beside(cat, name, at_end=True) is not None:
                return name, Bounds(self.dim, 0, length)
        return None
