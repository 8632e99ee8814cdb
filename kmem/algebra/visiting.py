"""Sums of an image over the positions that each tap of a convolution visits.

The sum of a convolution's result along an axis is, tap by tap, the weight times the sum of the
input elements that the tap meets inside the result. Taps are kept apart: so an infinite input meets
the same weights as before, and gives NaN or an infinity where it did.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.algebra.editing import GraphEditor
from kmem.algebra.linear import ConvolutionMap, Steps
from kmem.problem.graph import Ref
from kmem.problem.sizes import ceil_div


@dataclass(frozen=True, slots=True)
class Range:
    """Places start, start + step, ... below stop."""

    start: int
    stop: int
    step: int = 1


def visited(steps: Steps, length: int, results: int, *, is_transposed: bool) -> tuple[Range, ...]:
    """For each tap, the input places that it brings into the result along one axis.

    Args:
        length: of the input.
        results: length of the result.
    """
    found = []
    for tap in range(steps.kernel):
        offset = tap * steps.dilation - steps.padding
        if is_transposed:  # place * stride + offset lies in the result
            first = max(0, ceil_div(-offset, steps.stride))
            last = min(length - 1, (results - 1 - offset) // steps.stride)
            found.append(Range(first, max(first, last + 1)))
        else:  # result * stride + offset lies in the input
            first = max(0, ceil_div(-offset, steps.stride))
            last = min(results - 1, (length - 1 - offset) // steps.stride)
            start = first * steps.stride + offset
            stop = last * steps.stride + offset + 1
            found.append(Range(start, max(start, stop), steps.stride))
    return tuple(found)


def tap_sums(editor: GraphEditor, linear: ConvolutionMap, dims: Sequence[int]) -> Ref:
    """The input summed for each tap along these dimensions, whose sizes are then the kernel's."""
    value = linear.source
    shape, made = editor.spec(value).shape, linear.node.spec.shape
    rank = len(linear.axes)
    wanted = {
        dim: visited(
            linear.axes[dim - len(shape) + rank],
            shape[dim],
            made[dim],
            is_transposed=linear.is_transposed,
        )
        for dim in dims
    }
    if all(set(ranges) == {Range(0, shape[dim])} for dim, ranges in wanted.items()):
        total = editor.call("aten.sum.dim_IntList", value, tuple(dims), True)
        kernel = [len(wanted[dim]) if dim in wanted else size for dim, size in enumerate(shape)]
        return editor.call("aten.expand.default", total, tuple(kernel))
    for dim in sorted(dims, reverse=True):
        value = _sums_along(editor, value, dim, wanted[dim])
    return value


def _sums_along(editor: GraphEditor, value: Ref, dim: int, ranges: Sequence[Range]) -> Ref:
    """One sum a tap, stacked along the dimension; every element is read once if steps are 1."""
    sums = {}
    if all(each.step == 1 for each in ranges):
        cuts = sorted({place for each in ranges for place in (each.start, each.stop)})
        pieces = {
            start: _sum(editor, value, dim, Range(start, stop))
            for start, stop in zip(cuts, cuts[1:], strict=False)
        }
        for each in dict.fromkeys(ranges):
            parts = [pieces[start] for start in pieces if each.start <= start < each.stop]
            total = parts[0] if parts else _sum(editor, value, dim, each)
            for part in parts[1:]:
                total = editor.call("aten.add.Tensor", total, part)
            sums[each] = total
    else:
        sums = {each: _sum(editor, value, dim, each) for each in dict.fromkeys(ranges)}
    return editor.call("aten.cat.default", tuple(sums[each] for each in ranges), dim)


def _sum(editor: GraphEditor, value: Ref, dim: int, places: Range) -> Ref:
    size = editor.spec(value).shape[dim]
    if places != Range(0, size):
        value = editor.call("aten.slice.Tensor", value, dim, places.start, places.stop, places.step)
    return editor.call("aten.sum.dim_IntList", value, (dim,), True)
