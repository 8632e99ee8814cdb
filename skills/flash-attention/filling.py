"""One step that masks scores: what is filled, chosen or added, and how a kernel does the same.

It may be in place: scores that nothing else reads are made by a product, and by what is behind it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kmem.problem.graph import Arg, Node, OpGraph, Ref

_FILLS = ("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
_FILLS += ("aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor")
_ADDS = ("aten.add.Tensor", "aten.add_.Tensor")
_CHOOSES = ("aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.self")


@dataclass(frozen=True, slots=True)
class ReadMask:
    """A mask that is read: its name, its kind as `Mask` has it, and what fills scores.

    `period`: places of the outer axis after which it begins anew; 0 if it does not.
    """

    name: str
    kind: str
    fill: float = -math.inf
    period: int = 0

    @property
    def is_added(self) -> bool:
        return self.kind == "added"

    @property
    def hiding(self) -> float:
        """What it holds where it hides."""
        return {"added": -math.inf, "shows": False, "hides": True, "admits": False}[self.kind]

    @property
    def hides(self) -> bool:
        """Whether it puts -inf in the place of scores."""
        return not self.is_added and self.fill == -math.inf


def ways_to_mask(graph: OpGraph, node: Node) -> Iterator[tuple[Ref, ReadMask]]:
    """Scores and a mask: each way to see a node as masking by itself."""
    ways: list[tuple[Arg, Arg, str, float | None]] = []
    if node.kwargs:
        return
    if node.target in _ADDS:
        left, right = node.args[:2]
        ways = [(left, right, "added", -math.inf), (right, left, "added", -math.inf)]
        ways = ways[: 1 if node.is_in_place else 2]  # it is the scores that are written over
    elif node.target in _FILLS:
        ways = [(node.args[0], node.args[1], "hides", _number(graph, node.args[2]))]
    elif node.target in _CHOOSES:
        condition = node.args[0]
        shown, other = node.args[1:]
        ways = [(shown, condition, "shows", _number(graph, other))]
        ways += [(other, condition, "hides", _number(graph, shown))]
    for scores, mask, kind, fill in ways:
        if isinstance(scores, Ref) and isinstance(mask, Ref) and fill is not None:
            yield scores, ReadMask(mask.name, kind, fill)


def _number(graph: OpGraph, arg: Arg) -> float | None:
    """A number below infinity, also where a constant holds it; None for another value."""
    if isinstance(arg, Ref):
        constant = graph.placeholder(arg.name)
        arg = constant.value if constant is not None and constant.kind == "constant" else None
    return float(arg) if isinstance(arg, int | float) and arg < math.inf else None
