"""Patterns that show in how many rows, terms and planes an operator has.

patterns.py names them, beside those that show in axes and in which operator reads which.
"""

import math
from collections.abc import Sequence

from kmem.problem.costs.vendor import vendor_convolution
from kmem.problem.features.axes import reduced_dims
from kmem.problem.features.families import Families, word_of
from kmem.problem.graph import Node

#: Rows up to which a product is one pass over its other operand, and the columns there are for
#: each. Source: skills/small-m-matmul: up to 64 rows against a large weight.
_FEW_ROWS = 64
_COLUMNS_A_ROW = 8
#: Terms of a sum over rows or columns of its result from which on tiles of the result alone leave
#: most of the work in a row. Source: chosen; skills/split-k-matmul names 512.
_TERMS_A_ROW = 16

#: Rows that are fewer than a data centre's GPU has multiprocessors, and a length of one that is
#: work for several of them. Source: 108 of an A100, 132 of an H100; 256 KB of fp32, which is what
#: the registers of one hold.
_FEW_LONG_ROWS = 128
_LONG_ROW = 65536
#: Elements of a row that leave a warp's lanes little to do, and rows that fill any device whatever
#: a program does. Source: skills/several-rows-per-program.
_SHORT_ROW = 256
_MANY_ROWS = 65536
#: Queries up to which an attention reads its keys once for next to no work. Source:
#: skills/split-kv-decoding: one or few query tokens.
_FEW_QUERIES = 16
_KEYS_A_QUERY = 64
#: Input channels of a group up to which a convolution reads more than it multiplies.
#: Source: skills/direct-conv-few-channels.
_THIN = 8
#: Parts of an element that lie beside each other: pairs up to RGBA. Source:
#: skills/deinterleave-wide-loads.
_PARTS = range(2, 5)


def few_rows(known: Families) -> bool:
    """Whether a product has few rows, and a large operand that they all read."""
    return any(
        rows <= _FEW_ROWS and max(columns, terms) >= _COLUMNS_A_ROW * rows
        for rows, columns, terms in _products(known)
    )


def long_sum(known: Families) -> bool:
    """Whether a product sums many more terms than its result has rows or columns."""
    return any(
        terms >= _TERMS_A_ROW * max(rows, columns) for rows, columns, terms in _products(known)
    )


def batch_statistics(known: Families) -> bool:
    """Whether figures of each channel are taken over the batch and its pixels."""
    if any(
        known.names[node.name] == "batch_norm" and known.graph.training for node in known.of("norm")
    ):
        return True
    for node in known.of("reduction"):
        shape = known.graph.spec(node.refs()[0]).shape if node.refs() else ()
        dims = {dim % len(shape) for dim in reduced_dims(node)} if shape else set()
        if len(shape) > 2 and 0 in dims and 1 not in dims and len(dims) == len(shape) - 1:
            return True
    return False


def pooled_planes(known: Families) -> bool:
    """Whether each plane of an image is reduced to one number."""
    if any(known.names[node.name] == "adaptive_pool" for node in known.of("pooling")):
        return True
    for node in known.of("reduction"):
        shape = known.graph.spec(node.refs()[0]).shape if node.refs() else ()
        dims = {dim % len(shape) for dim in reduced_dims(node)} if shape else set()
        if len(shape) > 3 and dims == set(range(2, len(shape))):
            return True
    return False


def few_long_rows(known: Families) -> bool:
    """Whether a reduction, norm, softmax or scan has several rows, few and long ones."""
    for node in known.of("reduction", "softmax", "norm", "scan"):
        shape = known.graph.spec(node.refs()[0]).shape if node.refs() else ()
        length = _row_length(known, node, shape)
        if length >= _LONG_ROW and 1 < math.prod(shape) // length <= _FEW_LONG_ROWS:
            return True
    return False


def many_short_rows(known: Families) -> bool:
    """Whether a reduction, norm, softmax or scan has many rows, and short ones."""
    for node in known.of("reduction", "softmax", "norm", "scan"):
        shape = known.graph.spec(node.refs()[0]).shape if node.refs() else ()
        length = _row_length(known, node, shape)
        if 1 < length <= _SHORT_ROW and math.prod(shape) // length >= _MANY_ROWS:
            return True
    return False


def _row_length(known: Families, node: Node, shape: Sequence[int]) -> int:
    """How many elements an operator joins; 0 where that is not known."""
    given = node.args[1] if len(node.args) > 1 else None
    if known.family(node.name) == "norm":
        if known.names[node.name] in ("layer_norm", "rms_norm") and isinstance(given, tuple):
            return math.prod(size for size in given if isinstance(size, int))
        if known.names[node.name] == "group_norm" and isinstance(given, int):
            return math.prod(shape[1:]) // given
        return 0
    dims = {dim % len(shape) for dim in reduced_dims(node)} if shape else set()
    return math.prod(shape[dim] for dim in dims) if dims else 0


def few_queries(known: Families) -> bool:
    """Whether an attention has few queries for its many keys, be it spelled out."""
    for node in known.of("attention"):
        queries, keys = (known.graph.spec(name).shape[-2:-1] for name in node.refs()[:2])
        if _are_few(queries, keys):
            return True
    return any(
        _are_few(node.spec.shape[-2:-1], node.spec.shape[-1:])
        for node in known.of("softmax")
        if any(known.family(name) == "matmul" for name in known.sources(node, _THROUGH))
    )


_THROUGH = ("layout", "pointwise")


def _are_few(queries: Sequence[int], keys: Sequence[int]) -> bool:
    few = bool(queries) and queries[0] <= _FEW_QUERIES
    return few and bool(keys) and keys[0] >= _KEYS_A_QUERY * queries[0]


def overlapping_windows(known: Families) -> bool:
    """Whether windows are longer than the steps between them: a pooling's, a thin convolution's."""
    for node in known.of("convolution"):
        called = vendor_convolution(known.graph, node)
        if called is not None and called.channels_in <= _THIN:
            taps = known.graph.spec(node.refs()[1]).shape[2:]
            if any(size > apart for size, apart in zip(taps, called.stride, strict=False)):
                return True
    for node in known.of("pooling"):
        sizes = [each if isinstance(each, tuple) else (each,) for each in node.args[1:3]]
        if len(sizes) == 2 and all(isinstance(size, int) for each in sizes for size in each):
            window, step = sizes
            steps = step or window  # none given: as far as the window
            if any(size > apart for size, apart in zip(window, steps * len(window), strict=False)):
                return True
    return False


def interleaved_parts(known: Families) -> bool:
    """Whether each second to fourth element of a row is taken, the others by themselves."""
    for node in known.graph.nodes:
        word = word_of(node)
        if word not in ("slice", "select") or not node.refs() or len(node.args) < 2:
            continue
        shape, dim = known.graph.spec(node.refs()[0]).shape, node.args[1]
        is_last = isinstance(dim, int) and dim % max(1, len(shape)) == len(shape) - 1
        step = node.args[4] if word == "slice" and len(node.args) > 4 else 1
        parts = shape[-1] if word == "select" and shape else step
        if is_last and parts in _PARTS:
            return True
    return False


def _products(known: Families) -> list[tuple[int, int, int]]:
    """Rows, columns and terms of each product, a vector being one row."""
    found = []
    for node in known.of("matmul"):
        shapes = [known.graph.spec(name).shape for name in node.refs()[:2]]
        if len(shapes) < 2 or not all(shapes):
            continue
        terms, shape = shapes[0][-1], node.spec.shape
        is_shared = len(shapes[1]) <= 2  # by all of a batch
        rows = math.prod(shape[:-1]) if is_shared else math.prod(shape[-2:-1])
        if min(len(each) for each in shapes) == 1:
            rows = 1
        found.append((rows, shape[-1] if shape else 1, terms))
    return found
