"""The spaces over whose rows nodes reduce."""

from dataclasses import dataclass
from math import prod

from kmem.codegen.regions.region import RegionAxis
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Call, Reduction
from kmem.problem.operators.table import find_operator


def find_reduction(graph: OpGraph, node: Node) -> tuple[Reduction, Call] | None:
    """How a node is written if it is a reduction, softmax, norm or loss; None for any other."""
    operator = find_operator(node.target)
    if operator is None:
        return None
    call = operator.call(graph, node)
    lowering = operator.lowering_of(call)
    return (lowering, call) if isinstance(lowering, Reduction) else None


@dataclass(frozen=True, slots=True)
class RowSpace:
    """An iteration space before anything is lowered into it.

    `dims` are the reduced dimensions. With `groups`, dimension 1 is split into (groups, rest), and
    the rest is reduced.
    """

    shape: tuple[int, ...]
    dims: tuple[int, ...] = ()
    groups: int = 0

    @property
    def axes(self) -> tuple[RegionAxis, ...]:
        axes = []
        for dim, size in enumerate(self.shape):
            if dim == 1 and self.groups:
                share = size // self.groups
                axes += [
                    RegionAxis(self.groups, 1, share, False),
                    RegionAxis(share, 1, 1, True),
                ]
            else:
                axes.append(RegionAxis(size, dim, 1, dim in self.dims))
        return tuple(axes)

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The full shape with 1 for what is reduced."""
        return tuple(1 if dim in self.dims else size for dim, size in enumerate(self.shape))

    @property
    def squeezed_shape(self) -> tuple[int, ...]:
        """The full shape without what is reduced."""
        return tuple(size for dim, size in enumerate(self.shape) if dim not in self.dims)

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return prod(axis.size for axis in self.axes if axis.reduced)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return prod(axis.size for axis in self.axes if not axis.reduced)

    @property
    def squeezed_is_kept(self) -> bool:
        """Whether the squeezed shape, padded from the left, is the kept shape.

        It is when leading or all dimensions are reduced.
        """
        return (1,) * len(self.dims) + self.squeezed_shape == self.kept_shape


def space_of(graph: OpGraph, node: Node) -> RowSpace | None:
    """The space over whose rows a node reduces; None if it is no reduction that can be lowered."""
    found = find_reduction(graph, node)
    if found is None:
        return None
    reduction, call = found
    if not isinstance(node.args[0], Ref):
        return None
    reduced = reduction.dims(call)
    if reduced is None:
        return None
    groups = call[reduction.groups] if reduction.groups else 0
    return RowSpace(graph.spec(node.args[0].name).shape, reduced[0], groups)
