"""Patterns of a traced graph that say which skills could act on it, whatever a profiler counts.

A profile without counters says little of why a forward is slow; its graph says much: a product that
is averaged at once, two products of one input, a sum that is stepped through by hand. Each pattern
of vocabulary.GRAPH_PATTERNS has a function here. Between two operators of a pattern views and
copies may stand.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from kmem.problem.features import axes, sizes
from kmem.problem.features.families import TURNS, Families, word_of
from kmem.problem.features.spelled import (
    scaled_by_spread,
    scaled_by_squares,
    shared_exponentials,
)
from kmem.problem.graph import Node, OpGraph

#: Steps in a row from which on a forward is stepped through by hand.
_MANY_STEPS = 16
#: Products alike from which on one launch for all is worth it.
_MANY_PRODUCTS = 4
_MONOTONE = frozenset({"relu", "relu6", "sigmoid", "tanh", "exp", "clamp", "leaky_relu"})
_SHIFTS = frozenset({"flip", "cat", "pad", "constant_pad_nd", "roll"})
_PARTS = frozenset({"select", "slice", "getitem", "narrow"})
_PRODUCTS = ("matmul", "convolution", "conv_transpose")


def find_patterns(graph: OpGraph) -> tuple[str, ...]:
    """The names of the patterns that are in a graph, in the order of the vocabulary."""
    known = Families(graph)
    return tuple(name for name, is_there in _PATTERNS.items() if is_there(known))


def _reduced_dims(known: Families, node: Node) -> set[int] | None:
    """The dimensions that a sum or mean reduces, from the front; None for all of them."""
    spec = known.graph.spec(node.refs()[0])
    if len(node.args) < 2 or not isinstance(node.args[1], tuple | int):
        return None
    dims = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    return {dim % len(spec.shape) for dim in dims if isinstance(dim, int)}


def _sums_of_products(known: Families) -> Iterator[bool]:
    """For each mean or sum of a product whether it runs over the columns."""
    for node in known.of("reduction"):
        made = next(iter(node.refs()), "")
        if known.names[node.name] in ("mean", "sum") and known.family(made) in _PRODUCTS:
            dims = _reduced_dims(known, node)
            columns = 1 if known.family(made) != "matmul" else len(known.graph.spec(made).shape) - 1
            yield dims is None or columns in dims


def _averaged_product(known: Families) -> bool:
    pooled = (
        node
        for node in known.of("pooling")
        if known.names[node.name] in ("avg_pool", "adaptive_pool")
    )
    return False in _sums_of_products(known) or any(
        known.family(name) in _PRODUCTS for node in pooled for name in known.sources(node)
    )


def _product_summed_over_columns(known: Families) -> bool:
    return True in _sums_of_products(known)


def _reads(
    known: Families,
    readers: tuple[str, ...],
    read: tuple[str, ...],
    through: tuple[str, ...] = ("layout",),
) -> bool:
    """Whether a node of some families reads one of others, behind those looked through."""
    return any(
        known.family(name) in read
        for node in known.of(*readers)
        for name in known.sources(node, through)
    )


def _reduced_product(known: Families) -> bool:
    return _reads(known, ("reduction", "softmax"), _PRODUCTS, ("layout", "pointwise"))


def _chained_products(known: Families) -> bool:
    return _reads(known, ("matmul",), ("matmul",))


def _pointwise_before_product(known: Families) -> bool:
    return _reads(known, _PRODUCTS, ("pointwise", "norm"))


def _pointwise_after_product(known: Families) -> bool:
    return _reads(known, ("pointwise",), _PRODUCTS)


def _norm_beside_pointwise(known: Families) -> bool:
    return _reads(known, ("norm",), ("pointwise",)) or _reads(known, ("pointwise",), ("norm",))


def _products_of_one_input(known: Families) -> list[tuple[Node, Node]]:
    made: dict[str, list[Node]] = {}
    for node in known.of("matmul"):
        if any(not _PARTS.isdisjoint(known.passed(name)) for name in node.refs()):
            continue  # two parts of a tensor are no one input
        for name in dict.fromkeys(known.sources(node)):
            made.setdefault(name, []).append(node)
    return [pair for nodes in made.values() for pair in combinations(nodes[:8], 2)]


def _gated_products(known: Families) -> bool:
    pairs = _products_of_one_input(known)
    return any(
        {first.name, second.name} <= roots
        for node in known.of("pointwise")
        if pairs and (roots := set(known.sources(node, ("layout", "pointwise"))))
        for first, second in pairs
    )


def _readers_of_one_input(known: Families) -> bool:
    """Whether two reductions, or two products, read one value and do not wait for each other."""
    if any(not known.graph.depends_on(b.name, [a.name]) for a, b in _products_of_one_input(known)):
        return True
    nodes = list(known.of("reduction"))[:16]
    roots = {node.name: set(known.sources(node, ("layout", "pointwise"))) for node in nodes}
    return any(
        roots[first.name] & roots[second.name]
        and not known.graph.depends_on(second.name, [first.name])
        for first, second in combinations(nodes, 2)
    )


def _mean_of_loss(known: Families) -> bool:
    whole = (
        node
        for node in known.of("reduction")
        if known.names[node.name] in ("mean", "sum") and math.prod(node.spec.shape) == 1
    )
    return any(known.of("loss")) or any(
        known.family(name) == "pointwise" for node in whole for name in known.sources(node)
    )


def _picked_log_softmax(known: Families) -> bool:
    pickers = ("nll_loss", "nll_loss_nd", "nll_loss_forward", "gather")
    return any(
        known.names.get(name) == "log_softmax"
        for node in known.graph.nodes
        if word_of(node) in pickers
        for name in known.sources(node)
    )


def _softmax_between_products(known: Families) -> bool:
    through = ("layout", "pointwise")
    softmaxes = {
        node.name
        for node in known.of("softmax")
        if any(known.family(name) == "matmul" for name in known.sources(node, through))
    }
    return any(
        name in softmaxes for node in known.of("matmul") for name in known.sources(node, through)
    )


def _recurrence(known: Families) -> bool:
    """Whether slices of one tensor are stepped through, each step reading the one before."""
    slices = Counter(
        name for node in known.graph.nodes if word_of(node) == "select" for name in node.refs()
    )
    if max(slices.values(), default=0) < _MANY_STEPS:
        return False
    depths: dict[str, Mapping[str, int]] = {}
    for node in known.graph.nodes:
        depth: dict[str, int] = {}
        for name in node.refs():
            for target, count in depths.get(name, {}).items():
                depth[target] = max(count, depth.get(target, 0))
        if known.family(node.name) in ("pointwise", "matmul"):
            depth[node.target] = depth.get(node.target, 0) + 1
        depths[node.name] = depth
    return any(count >= _MANY_STEPS for depth in depths.values() for count in depth.values())


def _many_small_products(known: Families) -> bool:
    alike = Counter(node.spec.shape for node in known.of("matmul"))
    return max(alike.values(), default=0) >= _MANY_PRODUCTS


def _shifted_scan(known: Families) -> bool:
    for node in known.of("scan"):
        before = (word for name in node.refs() for word in known.passed(name))
        after = (word_of(reader) for reader in known.graph.users(node.name))
        if not _SHIFTS.isdisjoint([*before, *after]):
            return True
    return False


def _rotated_halves(known: Families) -> bool:
    """Whether a negated part of a tensor and another part of it are put together."""
    for node in known.graph.nodes:
        made = [known.graph.node(name) for name in node.refs()]
        negated = [each for each in made if each is not None and word_of(each) == "neg"]
        if word_of(node) in ("cat", "stack") and negated:
            others = [each for each in made if each is not None and each not in negated]
            roots = {root for each in negated for root in known.sources(each)}
            if roots & {root for each in others for root in known.sources(each)}:
                return True
    return False


def _monotone_before_max(known: Families) -> bool:
    maxima = (node for node in known.graph.nodes if known.names.get(node.name) in _MAXIMA)
    makers = (known.graph.node(name) for node in maxima for name in known.sources(node))
    return any(maker is not None and word_of(maker) in _MONOTONE for maker in makers)


_MAXIMA = ("max_pool", "max")


def _unfolded_product(known: Families) -> bool:
    return any(
        not {"unfold", "im2col", "as_strided"}.isdisjoint(known.passed(name))
        for node in known.of("matmul")
        for name in node.refs()
    )


def _permuted_product(known: Families) -> bool:
    """Whether what a product reads first was turned, and its result is turned back."""
    for node in known.of("matmul"):
        first = known.graph.node(next(iter(node.refs()), ""))
        turned = first is not None and "permute" in known.passed(first.name)
        waiting = list(known.graph.users(node.name))
        while turned and waiting:
            reader = waiting.pop()
            if word_of(reader) in TURNS:
                return True
            if known.family(reader.name) == "layout":
                waiting += known.graph.users(reader.name)
    return False


def _independent_products(known: Families) -> bool:
    """Whether two products neither wait for each other nor read one tensor."""
    nodes = list(known.of(*_PRODUCTS))[:16]
    read = {node.name: set(known.sources(node)) for node in nodes}
    return any(
        not read[first.name] & read[second.name]
        and not known.graph.depends_on(second.name, [first.name])
        for first, second in combinations(nodes, 2)
    )


_PATTERNS: Mapping[str, Callable[[Families], bool]] = {
    "averaged_product": _averaged_product,
    "product_summed_over_columns": _product_summed_over_columns,
    "reduced_product": _reduced_product,
    "chained_products": _chained_products,
    "pointwise_before_product": _pointwise_before_product,
    "pointwise_after_product": _pointwise_after_product,
    "gated_products": _gated_products,
    "readers_of_one_input": _readers_of_one_input,
    "many_small_products": _many_small_products,
    "norm_beside_pointwise": _norm_beside_pointwise,
    "mean_of_loss": _mean_of_loss,
    "shifted_scan": _shifted_scan,
    "rotated_halves": _rotated_halves,
    "monotone_before_max": _monotone_before_max,
    "depthwise_then_pointwise": axes.depthwise_then_pointwise,
    "recurrence": _recurrence,
    "picked_log_softmax": _picked_log_softmax,
    "softmax_between_products": _softmax_between_products,
    "unfolded_product": _unfolded_product,
    "permuted_product": _permuted_product,
    "scaled_by_squares": scaled_by_squares,
    "scaled_by_spread": scaled_by_spread,
    "shared_exponentials": shared_exponentials,
    "independent_products": _independent_products,
    "few_channels": axes.few_channels,
    "outer_reduction": axes.outer_reduction,
    "norm_over_outer_axis": axes.norm_over_outer_axis,
    "repeated_heads": axes.repeated_heads,
    "masked_attention": axes.masked_attention,
    "given_lengths": axes.given_lengths,
    "concatenated_results": axes.concatenated_results,
    "turned_result": axes.turned_result,
    "prepared_weight": axes.prepared_weight,
    "affine_after_product": axes.affine_after_product,
    "pooled_transposed": axes.pooled_transposed,
    "symmetric_product": axes.symmetric_product,
    "step_without_effect": axes.step_without_effect,
    "few_rows": sizes.few_rows,
    "long_sum": sizes.long_sum,
    "batch_statistics": sizes.batch_statistics,
    "pooled_planes": sizes.pooled_planes,
    "few_long_rows": sizes.few_long_rows,
    "many_short_rows": sizes.many_short_rows,
    "few_queries": sizes.few_queries,
    "overlapping_windows": sizes.overlapping_windows,
    "interleaved_parts": sizes.interleaved_parts,
    "turned_copy": axes.turned_copy,
}
