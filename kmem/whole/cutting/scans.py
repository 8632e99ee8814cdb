"""Chunked scans in a graph: from running sums to what their exponentials were multiplied with.

A selective scan that is written out (Mamba-2) is products with exponentials of differences of
running sums: within a chunk, to a chunk's state, from chunk to chunk, and back. Apart these are
products over large masks; as one piece they are one problem, whose kernels make the exponentials in
registers.
"""

import math

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.table import find_operator
from kmem.whole.cutting.loops import Loop

_SUM, _EXP = "aten.cumsum.default", "aten.exp.default"
_MASKS = ("aten.masked_fill.Scalar", "aten.where.ScalarOther")
#: What lies between running sums and their exponentials, beside views and masks.
_BETWEEN = ("aten.sub.Tensor", "aten.pad.default", "aten.constant_pad_nd.default", _SUM)
_PRODUCTS = ("aten.einsum.default", "aten.mul.Tensor", "aten.matmul.default", "aten.bmm.default")


def find_scans(graph: OpGraph) -> list[Loop]:
    """The stretches of a graph that are chunked scans, in order; none overlaps another."""
    found: list[Loop] = []
    for node in graph.nodes:
        if node.target == _SUM and (not found or graph.place(node.name) >= found[-1].end):
            end = _end(graph, node)
            if end is not None:
                found.append(Loop(graph.place(node.name), end))
    return found


def _end(graph: OpGraph, first: Node) -> int | None:
    """Where the scan ends that begins with running sums; None if they are none of a scan.

    A scan masks a difference of running sums before its exponential.
    """
    summed = first.args[0]
    made = {node.name for node in graph.users(summed.name) if node.target == _SUM}
    decays: set[str] = set()
    is_masked, last = False, graph.place(first.name)
    for node in graph.nodes[last:]:
        reads = {*node.refs()}
        if reads & made and (node.target in (*_BETWEEN, *_MASKS) or _is_view(node)):
            made.add(node.name)
            is_masked |= node.target in _MASKS and -math.inf in node.args
        elif reads & (made | decays) and (node.target == _EXP or _is_view(node)):
            decays.add(node.name)
        elif reads & decays and node.target in _PRODUCTS:
            last = graph.place(node.name)
            # a pointwise factor of a product is a factor still
            if node.target == _PRODUCTS[1] and graph.has_one_user(node.name):
                decays.add(node.name)
    if not is_masked or last == graph.place(first.name):
        return None
    return _with_addition(graph, last)


def _with_addition(graph: OpGraph, last: int) -> int:
    """The end of a scan behind its last product: the addition of its parts, or views of it."""
    node = graph.nodes[last]
    while len(users := graph.users(node.name)) == 1:
        (node,) = users
        if node.target == "aten.add.Tensor":
            return graph.place(node.name) + 1
        if not _is_view(node):
            break
    end = last + 1
    while end < len(graph.nodes) and _is_view(graph.nodes[end]):
        end += 1  # the last state, say
    return end


def _is_view(node: Node) -> bool:
    operator = find_operator(node.target)
    return operator is not None and operator.is_view and isinstance(node.args[0], Ref)
