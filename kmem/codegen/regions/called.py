"""What the vocabulary calls a region."""

from kmem.codegen.regions.lowering import Lowering
from kmem.codegen.regions.region import Reduce
from kmem.codegen.regions.space import find_reduction
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.reductions import norm_order
from kmem.problem.operators.row import Call, Pointwise
from kmem.problem.operators.table import find_operator, lowering_of


def operator_of(graph: OpGraph, nodes: list[Node], lowering: Lowering) -> str:
    """The vocabulary's name for what a region computes.

    A norm, softmax or loss names its region. Else the first reduction does, under another name
    where elements of the row are divided by it.
    """
    first: tuple[str, Call] | None = None
    for node in nodes:
        found = find_reduction(graph, node)
        if found is None:
            continue
        reduction, call = found
        name = find_operator(node.target).name
        if reduction.names_region:
            return name
        first = first or (name, call)
    if first is None:
        return "pointwise"
    scales = any(isinstance(item, Reduce) for item in lowering.statements) and any(
        _divides_elements(graph, node, lowering) for node in nodes
    )
    return _scaled_by(graph, *first, lowering) if scales else first[0]


def _divides_elements(graph: OpGraph, node: Node, lowering: Lowering) -> bool:
    written = lowering_of(graph, node)
    is_quotient = isinstance(written, Pointwise) and written.is_quotient
    return is_quotient and node.spec.shape == lowering.shape


def _scaled_by(graph: OpGraph, name: str, call: Call, lowering: Lowering) -> str:
    """What a row divided by a reduction of it is called."""
    if name == "vector_norm":
        if norm_order(call) == 1:
            return "l1_norm"
        is_whole = len(lowering.space.dims) == len(lowering.shape)
        return "frobenius_norm" if is_whole else "l2_norm"
    source = graph.node(call.value("x"))
    summed = lowering_of(graph, source) if source is not None else None
    order = summed.norm_order if isinstance(summed, Pointwise) else 0
    if name not in ("mean", "sum") or not order:
        return name
    if order == 1:
        return "l1_norm"
    return "rms_norm" if name == "mean" else "l2_norm"
