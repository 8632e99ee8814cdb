"""Patterns that show in the axes and copies of a graph's operators.

patterns.py names them, beside those that show in which operator reads which.
"""

import math
from collections.abc import Iterator

from kmem.problem.costs.vendor import vendor_convolution
from kmem.problem.features.families import TURNS, Families, word_of
from kmem.problem.graph import Node

#: Input channels up to which a convolution leaves most of a tensor-core tile empty.
#: Source: skills/direct-conv-few-channels.
_FEW_CHANNELS = 8
_COPIES = frozenset({"contiguous", "clone", "reshape", "to", "_to_copy", "cat", "stack", "pad"})
_REPEATS = frozenset({"repeat_interleave", "expand", "repeat"})
_MASKS = frozenset({"masked_fill", "where", "tril", "triu"})
_ORDERS = frozenset({"lt", "le", "gt", "ge"})
_AFFINE = frozenset({"mul", "add", "sub", "div"})


def few_channels(known: Families) -> bool:
    """Whether a convolution, not a depthwise one, has few input channels a group."""
    return any(
        (called := vendor_convolution(known.graph, node)) is not None
        and called.channels_in <= _FEW_CHANNELS
        and not called.is_depthwise
        for node in known.of("convolution")
    )


def is_depthwise(known: Families, node: Node) -> bool:
    """Whether a convolution has a group for each of its several input channels."""
    if known.family(node.name) != "convolution":
        return False
    called = vendor_convolution(known.graph, node)
    return called is not None and called.is_depthwise


def depthwise_then_pointwise(known: Families) -> bool:
    """Whether a convolution that is none reads a depthwise one."""
    return any(
        (maker := known.graph.node(name)) is not None and is_depthwise(known, maker)
        for node in known.of("convolution")
        if not is_depthwise(known, node)
        for name in known.sources(node, ("layout", "pointwise", "norm"))
    )


def outer_reduction(known: Families) -> bool:
    """Whether a reduction leaves the last dimension, along which memory is contiguous."""
    return any(_leaves_last(known, node) for node in known.of("reduction"))


def norm_over_outer_axis(known: Families) -> bool:
    """Whether a softmax, or a figure that scales its own tensor, leaves the last dimension."""
    if any(_leaves_last(known, node) for node in known.of("softmax")):
        return True
    for node in known.of("reduction"):
        if not _leaves_last(known, node):
            continue
        roots = set(known.sources(node, ("layout", "pointwise")))
        for user in known.of("pointwise"):
            if roots & set(user.refs()) and known.graph.depends_on(user.name, [node.name]):
                return True
    return False


def repeated_heads(known: Families) -> bool:
    """Whether an attention reads what was repeated for several of its heads."""
    for node in known.of("attention"):
        if node.kwargs.get("enable_gqa") is True:
            return True
        for name in node.refs():
            sources = [known.graph.node(source) for source in known.sources(node)]
            words = {word_of(source) for source in sources if source is not None}
            if not _REPEATS.isdisjoint(words | set(known.passed(name))):
                return True
    return False


def masked_attention(known: Families) -> bool:
    """Whether an attention is causal or masked, be it spelled out."""
    if any(
        len(node.args) > 3
        and node.args[3] is not None
        or len(node.args) > 5
        and node.args[5] is True
        or node.kwargs.get("attn_mask") is not None
        or node.kwargs.get("is_causal") is True
        for node in known.of("attention")
    ):
        return True
    return any(
        word_of(maker) in _MASKS
        and any(_is_product(known, made) for made in known.sources(maker, ("layout", "pointwise")))
        for node in known.of("softmax")
        for name in known.sources(node)
        if (maker := known.graph.node(name)) is not None
    )


def given_lengths(known: Families) -> bool:
    """Whether places are compared with a value that is given: how far each row goes."""
    for node in known.graph.nodes:
        if word_of(node) in _ORDERS:
            counted = ["arange" in known.passed(name) for name in node.refs()]
            if sorted(counted) == [False, True]:
                return True
    return False


def concatenated_results(known: Families) -> bool:
    """Whether two results or more are copied into one tensor."""
    return any(
        word_of(node) == "cat"
        and sum(bool(known.family(name)) for name in set(known.sources(node))) >= 2
        for node in known.graph.nodes
    )


def turned_result(known: Families) -> bool:
    """Whether a product's or an attention's result is turned and then copied."""
    return any(
        word_of(node) in _COPIES
        and not TURNS.isdisjoint(known.passed(node.name))
        and any(known.family(name) in ("matmul", "attention") for name in known.sources(node))
        for node in known.of("layout")
    )


def turned_copy(known: Families) -> bool:
    """Whether a tensor, no product's result, is copied with another axis last than it had."""
    for node in known.graph.nodes:
        if word_of(node) not in ("contiguous", "clone", "reshape") or not node.refs():
            continue
        if any(known.family(name) in ("matmul", "attention") for name in known.sources(node)):
            continue
        if any(_turns_last(view) for view in known.views(node.refs()[0])):
            return True
    return False


def _turns_last(view: Node) -> bool:
    """Whether a view has another dimension last than what it views."""
    rank = len(view.spec.shape)
    given = view.args[1] if len(view.args) > 1 else None
    if word_of(view) == "permute" and isinstance(given, tuple):
        return given[-1] not in (rank - 1, -1)
    is_exchange = word_of(view) in ("transpose", "movedim")
    return word_of(view) == "t" or (is_exchange and not {rank - 1, -1}.isdisjoint(view.args[1:]))


def prepared_weight(known: Families) -> bool:
    """Whether something is computed or copied of parameters alone, in each forward."""
    for node in known.graph.nodes:
        places = [known.graph.placeholder(name) for name in known.sources(node)]
        works = known.family(node.name) == "pointwise" or word_of(node) in _COPIES
        kept = [place for place in places if place is not None and place.kind == "parameter"]
        if works and kept and len(kept) == len(places):
            return True
    return False


def affine_after_product(known: Families) -> bool:
    """Whether constants or a vector scale or shift what a product or convolution makes."""
    for node in known.of("pointwise", "norm"):
        refs = node.refs()
        made = next((name for name in refs if _is_product(known, name)), "")
        if not made:
            continue
        if known.names.get(node.name) == "batch_norm" and not known.graph.training:
            return True
        others = [known.graph.spec(name).shape for name in refs if name != made]
        if word_of(node) in _AFFINE and all(
            math.prod(shape) <= max(shape, default=1) for shape in others
        ):
            return True
    return False


def pooled_transposed(known: Families) -> bool:
    """Whether an average pooling reads a transposed convolution."""
    return any(
        known.names.get(node.name) == "avg_pool"
        and any(known.family(name) == "conv_transpose" for name in known.sources(node))
        for node in known.of("pooling")
    )


def symmetric_product(known: Families) -> bool:
    """Whether a tensor is multiplied with its own transpose."""
    for node in known.of("matmul"):
        first, *others = node.refs() or ("",)
        for second in others:
            one, two = list(known.passed(first)), list(known.passed(second))
            turned = TURNS.isdisjoint(one) != TURNS.isdisjoint(two)
            if turned and known.origin(first) == known.origin(second):
                return True
    return False


def step_without_effect(known: Families) -> bool:
    """Whether an operator changes nothing: times one, plus zero, dropout that is off."""
    return any(
        (word in ("mul", "div") and len(node.args) > 1 and node.args[1] == 1)
        or (word in ("add", "sub") and len(node.args) > 1 and node.args[1] == 0)
        or (word == "dropout" and len(node.args) > 2 and node.args[2] is False)
        for node in known.graph.nodes
        if (word := word_of(node))
    )


def _is_product(known: Families, name: str) -> bool:
    return known.family(name) in ("matmul", "convolution", "conv_transpose")


def reduced_dims(node: Node) -> Iterator[int]:
    """The dimensions that a reduction names."""
    # a norm's order stands before its dimensions
    place = 2 if "norm" in word_of(node) else 1
    dims = node.args[place] if len(node.args) > place else None
    for dim in dims if isinstance(dims, tuple) else (dims,):
        if isinstance(dim, int) and not isinstance(dim, bool):
            yield dim


def _leaves_last(known: Families, node: Node) -> bool:
    """Whether a reduction's dimensions are named, and the last, of several lanes, is not one."""
    shape = known.graph.spec(node.refs()[0]).shape if node.refs() else ()
    dims = {dim % len(shape) for dim in reduced_dims(node)} if shape else set()
    return bool(dims) and len(shape) - 1 not in dims and shape[-1] > 1
