"""A mean or sum over positions moves in front of the linear map whose results it adds up."""

from collections.abc import Callable, Iterator, Sequence

from kmem.algebra.editing import CannotRewrite, GraphEditor
from kmem.algebra.linear import ConvolutionMap, ProductMap, read_convolution, read_product
from kmem.algebra.reducing import (
    Affine,
    Pool,
    Total,
    padded_shape,
    read_affine,
    read_pool,
    read_total,
)
from kmem.algebra.visiting import tap_sums
from kmem.problem.graph import OpGraph, Ref
from kmem.records import Contract
from kmem.rewrites import Rewrite, Rewriting

#: What puts one place into another form: the new graph, and why it is equal.
Change = tuple[Callable[[], OpGraph], str]


class AverageBeforeLinear(Rewrite):
    """mean_s (W x_s + b) = W mean_s (x_s) + b."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every total or average pooling of a linear map, or of an affine step behind one."""
        found = []
        for node in graph.nodes:
            average = read_total(graph, node) or read_pool(graph, node)
            if average is None or not graph.has_one_user(average.source.name):
                continue
            for make, reason in _changes(graph, average):
                try:
                    rewritten = make()
                except CannotRewrite:
                    continue
                word = "avg_pool" if isinstance(average, Pool) else "mean"
                found.append(Rewriting(node.name, word, rewritten, reason))
        return found


def _changes(graph: OpGraph, average: Total | Pool) -> Iterator[Change]:
    """At most one change: the kinds of producers exclude each other."""
    name = average.source.name
    affine = read_affine(graph, name)
    inner = _read_inner_pool(graph, average)
    within = graph.node(name)
    total = None if within is None else read_total(graph, within)
    product = read_product(graph, name)
    convolution = read_convolution(graph, name)
    if affine is not None:
        yield from _past_affine(graph, average, affine)
    elif inner is not None and isinstance(average, Pool):
        yield from _pool_once(graph, average, inner)
    elif total is not None and isinstance(average, Total):
        yield from _total_once(graph, average, total)
    elif product is not None and isinstance(average, Total):
        yield from _past_product(graph, average, product)
    elif convolution is not None and isinstance(average, Total):
        yield from _past_convolution(graph, average, convolution)
    elif convolution is not None and convolution.is_pointwise and isinstance(average, Pool):
        yield from _pool_first(graph, average, convolution)


# --- affine steps


def _past_affine(graph: OpGraph, average: Total | Pool, affine: Affine) -> Iterator[Change]:
    is_constant = affine.is_constant_along(graph, average.dims)
    if not is_constant and not (affine.is_shift and isinstance(average, Total)):
        return

    def make() -> OpGraph:
        editor = GraphEditor(graph, average.node.name)
        operand = affine.operand
        if not is_constant:
            operand = _mean_of_operand(editor, affine, average)
        if affine.is_shift and isinstance(average, Total) and not average.is_mean:
            operand = _times(editor, operand, average.count)
        value = affine.of(editor, average.of(editor, affine.source), operand)
        return editor.replaced(editor.shaped(value, average.node.spec.shape))

    yield make, f"{average.node.name} is taken ahead of {affine.node.name}, on fewer elements"


def _mean_of_operand(editor: GraphEditor, affine: Affine, total: Total) -> Ref:
    """The mean of a shift over the dimensions of a total, kept as ones."""
    operand, rank = affine.operand, len(affine.node.spec.shape)
    sizes = padded_shape(editor.spec(operand), rank)
    dims = tuple(dim - rank for dim in total.dims if sizes[dim] > 1)
    return editor.call("aten.mean.dim", operand, dims, True)


def _times(editor: GraphEditor, operand: Ref | int | float, count: int) -> Ref | int | float:
    if isinstance(operand, Ref):
        return editor.call("aten.mul.Tensor", operand, count)
    return operand * count


# --- poolings of poolings


def _read_inner_pool(graph: OpGraph, outer: Total | Pool) -> Pool | None:
    """A pooling in front of another, both with windows that neither overlap nor leave gaps."""
    node = graph.node(outer.source.name)
    if node is None or not isinstance(outer, Pool):
        return None
    inner = read_pool(graph, node)
    if inner is None or inner.kernel != inner.stride or outer.kernel != outer.stride:
        return None
    return inner


def _pool_once(graph: OpGraph, outer: Pool, inner: Pool) -> Iterator[Change]:
    def make() -> OpGraph:
        editor = GraphEditor(graph, outer.node.name)
        window = tuple(a * b for a, b in zip(inner.kernel, outer.kernel, strict=True))
        return editor.replaced(editor.call(outer.node.target, inner.source, window, window))

    yield make, f"{inner.node.name} and {outer.node.name} are one pooling with larger windows"


# --- totals of totals


def _total_once(graph: OpGraph, outer: Total, inner: Total) -> Iterator[Change]:
    """One over all elements of both: a mean, or a sum where either is one."""
    shape = graph.spec(inner.source.name).shape
    places = range(len(shape))
    if len(inner.node.spec.shape) != len(shape):
        places = [place for place in places if place not in inner.dims]
    dims = sorted({*inner.dims, *(places[dim] for dim in outer.dims)})

    def make() -> OpGraph:
        editor = GraphEditor(graph, outer.node.name)
        both = outer.is_mean and inner.is_mean
        target = "aten.mean.dim" if both else "aten.sum.dim_IntList"
        value = editor.call(target, inner.source, tuple(dims))
        if outer.is_mean != inner.is_mean:
            value = editor.call("aten.div.Tensor", value, (outer if outer.is_mean else inner).count)
        return editor.replaced(editor.shaped(value, outer.node.spec.shape))

    yield make, f"{inner.node.name} and {outer.node.name} are one over all of their elements"


# --- linear maps


def _past_product(graph: OpGraph, total: Total, product: ProductMap) -> Iterator[Change]:
    last = len(product.node.spec.shape) - 1
    if last in total.dims or not total.dims:
        return

    def make() -> OpGraph:
        editor = GraphEditor(graph, total.node.name)
        source = total.of(editor, product.source)
        weight = product.weight
        if product.outputs:
            weight = editor.call("aten.t.default", weight)
        value = editor.call("aten.linear.default", source, weight)
        if product.bias is not None:
            value = total.shifted(editor, value, product.bias)
        return editor.replaced(editor.shaped(value, total.node.spec.shape))

    yield make, f"{total.node.name} is over positions: {product.node.name} runs on the average"


def _past_convolution(graph: OpGraph, total: Total, linear: ConvolutionMap) -> Iterator[Change]:
    if linear.groups != 1 or not total.dims or total.dims[0] < 2:
        return

    def make() -> OpGraph:
        editor = GraphEditor(graph, total.node.name)
        sums = tap_sums(editor, linear, total.dims)
        value = total.scaled(editor, _apply_taps(editor, linear, sums, total.dims))
        if linear.bias is not None:
            shape = (-1, *(1 for _ in editor.spec(value).shape[2:]))
            bias = editor.call("aten.reshape.default", linear.bias, shape)
            value = total.shifted(editor, value, bias)
        return editor.replaced(editor.shaped(value, total.node.spec.shape))

    yield (
        make,
        f"{total.node.name} of {linear.node.name} needs only the sums of its input that each tap "
        "visits",
    )


def _apply_taps(editor: GraphEditor, linear: ConvolutionMap, sums: Ref, dims: Sequence[int]) -> Ref:
    """The weights applied to sums by tap: a product, or a convolution along what is left."""
    kept = [dim for dim in range(2, len(linear.axes) + 2) if dim not in dims]
    shape = editor.spec(sums).shape
    image = editor.call("aten.permute.default", sums, (0, 1, *dims, *kept))
    image = editor.call(
        "aten.reshape.default", image, (shape[0], -1, *(shape[dim] for dim in kept))
    )
    weight, sizes = linear.weight, editor.spec(linear.weight).shape
    if linear.is_transposed:  # (inputs, outputs, taps)
        order, outputs = (0, *dims, 1, *kept), sizes[1]
        shape = (-1, outputs, *(sizes[dim] for dim in kept))
    else:
        order, outputs = (0, 1, *dims, *kept), sizes[0]
        shape = (outputs, -1, *(sizes[dim] for dim in kept))
    weight = editor.call("aten.permute.default", weight, order)
    weight = editor.call("aten.reshape.default", weight, shape)
    if not kept:
        if linear.is_transposed:
            weight = editor.call("aten.t.default", weight)
        return editor.call("aten.linear.default", image, weight)
    axes = [linear.axes[dim - 2] for dim in kept]
    stride, padding = tuple(axis.stride for axis in axes), tuple(axis.padding for axis in axes)
    dilation = tuple(axis.dilation for axis in axes)
    if not linear.is_transposed:
        target = f"aten.conv{len(kept)}d.default"
        return editor.call(target, image, weight, None, stride, padding, dilation)
    made = linear.node.spec.shape
    spare = tuple(
        made[dim]
        - ((shape_in - 1) * axis.stride - 2 * axis.padding + axis.dilation * (axis.kernel - 1) + 1)
        for dim, shape_in, axis in zip(kept, editor.spec(image).shape[2:], axes, strict=True)
    )
    target = f"aten.conv_transpose{len(kept)}d.{'default' if len(kept) == 1 else 'input'}"
    return editor.call(target, image, weight, None, stride, padding, spare, 1, dilation)


def _pool_first(graph: OpGraph, pool: Pool, linear: ConvolutionMap) -> Iterator[Change]:
    def make() -> OpGraph:
        editor = GraphEditor(graph, pool.node.name)
        arguments = linear.node.args[1:]
        pooled = pool.of(editor, linear.source)
        return editor.replaced(editor.call(linear.node.target, pooled, *arguments))

    yield make, f"{pool.node.name} is taken ahead of the 1x1 convolution {linear.node.name}"


REWRITE = AverageBeforeLinear()
