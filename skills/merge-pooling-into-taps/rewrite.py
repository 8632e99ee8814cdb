"""An average pooling right behind a transposed convolution becomes one ordinary convolution."""

from collections.abc import Sequence

from kmem.algebra.adding import with_infinities
from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.linear import ConvolutionMap, Steps, read_convolution
from kmem.algebra.reducing import Pool, read_pool
from kmem.problem.graph import OpGraph, Ref
from kmem.problem.sizes import ceil_div
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting


class MergePoolingIntoTaps(Rewrite):
    """Pooling steps as wide as the stride see the same taps from every window."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every average pooling of a transposed convolution that steps as the convolution does."""
        found = []
        for node in graph.nodes:
            pool = read_pool(graph, node)
            if pool is None or not graph.has_one_user(pool.source.name):
                continue
            linear = read_convolution(graph, pool.source.name)
            if linear is None or not _fits(pool, linear):
                continue
            try:
                rewritten = _merge(graph, pool, linear)
            except CannotRewrite:
                continue
            reason = (
                f"{node.name} of {linear.node.name} is a convolution whose taps are sums of those "
                "that meet in a window"
            )
            found.append(Rewriting(node.name, "avg_pool", rewritten, reason))
        return found


def _fits(pool: Pool, linear: ConvolutionMap) -> bool:
    return (
        linear.is_transposed
        and linear.groups == 1
        and all(axis.dilation == 1 for axis in linear.axes)
        and pool.stride == tuple(axis.stride for axis in linear.axes)
    )


def _offsets(steps: Steps, window: int) -> range:
    """Places from a window's own input place back to those whose taps reach into the window.

    Result place o of input place i is tap o + padding - i * stride. So window q, which begins at
    q * stride, takes of input place q - e the taps e * stride + padding ... + window - 1.
    """
    first = ceil_div(1 - steps.padding - window, steps.stride)
    last = (steps.kernel - 1 - steps.padding) // steps.stride
    return range(first, last + 1)


def _merged(
    editor: GraphEditor, weight: Ref, linear: ConvolutionMap, pool: Pool, target: str
) -> Ref:
    """The weights of the taps that meet in a window reduced to one, along every axis."""
    for place, (steps, window) in enumerate(zip(linear.axes, pool.kernel, strict=True)):
        pieces = []
        for offset in reversed(_offsets(steps, window)):
            begin = offset * steps.stride + steps.padding
            start, stop = max(0, begin), min(steps.kernel, begin + window)
            taps = editor.call("aten.slice.Tensor", weight, place + 2, start, stop)
            pieces.append(editor.call(target, taps, (place + 2,), True))
        weight = editor.call("aten.cat.default", tuple(pieces), place + 2)
    return weight


def _merge(graph: OpGraph, pool: Pool, linear: ConvolutionMap) -> OpGraph:
    editor = GraphEditor(graph, pool.node.name)
    weight = editor.call("aten.transpose.int", linear.weight, 0, 1)  # (outputs, inputs, taps)
    outputs = editor.spec(weight).shape[0]
    reductions = ("aten.sum.dim_IntList", "aten.amin.default", "aten.amax.default")
    merged = [_merged(editor, weight, linear, pool, target) for target in reductions]
    results = _convolve(editor, pool, linear, editor.call("aten.cat.default", tuple(merged), 0))
    parts = [
        editor.call("aten.slice.Tensor", results, 1, place * outputs, (place + 1) * outputs)
        for place in range(3)
    ]
    value = with_infinities(editor, *parts)
    count = 1
    for window in pool.kernel:
        count *= window
    value = editor.call("aten.div.Tensor", value, count)
    if linear.bias is not None:
        bias = editor.shaped(linear.bias, (outputs, *(1 for _ in linear.axes)))
        value = editor.call("aten.add.Tensor", value, bias)
    return editor.replaced(value)


def _convolve(editor: GraphEditor, pool: Pool, linear: ConvolutionMap, weight: Ref) -> Ref:
    """The convolution with merged taps, of as many places as the pooling has windows."""
    image, windows = editor.spec(linear.source).shape[2:], pool.node.spec.shape[2:]
    offsets = [
        _offsets(steps, window) for steps, window in zip(linear.axes, pool.kernel, strict=True)
    ]
    padding = tuple(
        max(0, each[-1], count - 1 - each[0] - (length - 1))
        for each, count, length in zip(offsets, windows, image, strict=True)
    )
    rank = len(linear.axes)
    target = f"aten.conv{rank}d.default"
    value = editor.call(target, linear.source, weight, None, (1,) * rank, padding)
    for place, (each, count) in enumerate(zip(offsets, windows, strict=True)):
        start = padding[place] - each[-1]
        if (start, start + count) != (0, editor.spec(value).shape[place + 2]):
            value = editor.call("aten.slice.Tensor", value, place + 2, start, start + count)
    return value


REWRITE = MergePoolingIntoTaps()
