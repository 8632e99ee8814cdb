"""The spaces over whose rows nodes reduce."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.regions.region import RegionAxis
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Call, Reduction
from kmem.problem.operators.table import find_operator
from kmem.problem.sizes import dense_strides, single_step
from kmem.records import TensorSpec


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

    def unfolded(self, spec: TensorSpec, shape: Sequence[int]) -> TensorSpec | None:
        """An operand that broadcasts to the elements of the space in another shape, as one of the
        full shape; None if it has no single step along a dimension of that.

        Args:
            shape: as many elements, in the order of the full shape's.
        """
        if spec.is_contiguous and spec.shape == tuple(shape):
            return replace(spec, shape=self.shape, stride=dense_strides(self.shape))
        missing = len(shape) - len(spec.shape)
        if missing < 0 or prod(shape) != prod(self.shape):
            return None
        steps = [0] * missing + [
            step if size > 1 else 0 for size, step in zip(spec.shape, spec.stride, strict=True)
        ]
        if any(
            size not in (1, full) for size, full in zip(spec.shape, shape[missing:], strict=True)
        ):
            return None
        left = [*zip(shape, steps, strict=True)]
        found: list[int] = []
        for size in reversed(self.shape):
            parts = [part for part in _taken(left, size) if part[0] > 1]
            sizes = [count for count, _ in reversed(parts)]
            step = single_step([step for _, step in reversed(parts)], sizes)
            if step is None or prod(sizes) != size:
                return None
            found.append(step)
        return replace(spec, shape=self.shape, stride=tuple(reversed(found)))


def _taken(left: list[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The last dimensions of so many elements, the innermost first, taken off; of one that has
    more, a part. What does not come out even is left short.
    """
    while size > 1 and left:
        full, step = left.pop()
        part = full if size % full == 0 else size
        if full % part:
            return
        if full > part:
            left.append((full // part, step * part))
        yield part, step
        size //= part


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
