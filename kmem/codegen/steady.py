"""What parameters alone decide of a forward: values that are the same at every call.

Parameters, buffers that the forward leaves alone, and what is computed from them: weights scaled,
folded, transposed. A module makes these once, and anew when a parameter changes.

Covered: launches of sites, and library calls of known pointwise operators, reductions,
concatenations, rows picked by index, copies in another dtype, and views.
Not covered: what the forward changes in place or returns, or a view of it; constants.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kmem.problem.graph import Node, OpGraph, Placeholder, Ref
from kmem.problem.operators.row import Layout, Pointwise, Reduction
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand, Site

#: What names of operators have in them that write the statistics that they are given.
_WRITING_NORMS = ("batch_norm", "instance_norm")


@dataclass(frozen=True, slots=True)
class SteadyValues:
    """Names of values that parameters alone decide.

    `made` are results of memory of their own, which can be kept; the others are parameters, buffers
    and views.
    """

    names: frozenset[str]
    made: frozenset[str]


def find_steady(graph: OpGraph, steps: Sequence[Node | Site]) -> SteadyValues:
    """The values of a forward that parameters alone decide.

    Args:
        steps: library calls and sites in order of execution.
    """
    exposed = _exposed(graph)
    names = {
        placeholder.name
        for placeholder in graph.placeholders
        if placeholder.spec is not None
        and placeholder.name not in exposed
        and (placeholder.kind == "parameter" or _is_kept_buffer(graph, placeholder))
    }
    made: set[str] = set()
    for step in steps:
        reads, makes = _reads(step), _makes(step)
        if not reads or not set(reads) <= names or exposed & set(makes):
            continue
        if isinstance(step, Site) or _is_computed(graph, step):
            names.update(makes)
            made.update(makes)
        elif _is_view(step):
            names.update(makes)
    return SteadyValues(frozenset(names), frozenset(made))


def _is_kept_buffer(graph: OpGraph, placeholder: Placeholder) -> bool:
    """Whether a placeholder is a buffer that the forward leaves alone.

    In training norms write the statistics that they are given, which no schema says.
    """
    return placeholder.kind == "buffer" and (
        not graph.training or _is_only_read(graph, placeholder.name)
    )


def _is_only_read(graph: OpGraph, name: str) -> bool:
    return all(
        _is_only_read(graph, user.name) if _is_view(user) else _only_reads(user)
        for user in graph.users(name)
    )


def _only_reads(node: Node) -> bool:
    is_known = find_operator(node.target) is not None
    return is_known and not any(norm in node.target for norm in _WRITING_NORMS)


def kept_operands(graph: OpGraph, names: Sequence[str]) -> tuple[Operand, ...]:
    """Values as operands of a site, marked where parameters alone decide them.

    That hangs on the whole forward, however much of it a recipe sees.
    """
    steady = graph.whole.once(_steady_names)
    return tuple(Operand(name, graph.spec(name), name in steady) for name in names)


def _steady_names(graph: OpGraph) -> frozenset[str]:
    return find_steady(graph, graph.nodes).names


def _reads(step: Node | Site) -> list[str]:
    if isinstance(step, Node):
        return list(step.refs())
    return [operand.name for operand in step.inputs]


def _makes(step: Node | Site) -> list[str]:
    return [step.name] if isinstance(step, Node) else [operand.name for operand in step.outputs]


def _exposed(graph: OpGraph) -> set[str]:
    """Values that the forward changes or hands out, themselves or in a view."""
    exposed = set(graph.outputs)
    for node in graph.nodes:
        if node.is_in_place:
            exposed.add(node.name)
            exposed.update(_first_ref(node))
    for node in reversed(graph.nodes):
        if node.name in exposed:
            exposed.update(node.refs() if _may_alias(node) else ())
    return exposed


def _first_ref(node: Node) -> Iterator[str]:
    first = node.args[0] if node.args else None
    if isinstance(first, Ref):
        yield first.name
    else:  # a list of tensors, or a keyword: any may be meant
        yield from node.refs()


def _may_alias(node: Node) -> bool:
    """Whether a result may lie in the memory of what it is made from."""
    operator = find_operator(node.target)
    return operator is None or operator.is_view or node.is_in_place


def _is_view(node: Node) -> bool:
    operator = find_operator(node.target)
    return operator is not None and operator.is_view and not node.is_in_place


def _is_computed(graph: OpGraph, node: Node) -> bool:
    """Whether a library call computes one new tensor from its inputs alone."""
    operator = find_operator(node.target)
    if operator is None or operator.is_view or node.is_in_place or isinstance(node.output, tuple):
        return False
    lowering = lowering_of(graph, node)
    is_known = isinstance(lowering, Pointwise | Reduction) or lowering is Layout.CONCATENATE
    # to types that no kernel writes, too; what is of the type already stays itself
    is_known |= operator.lowering is Layout.CAST
    # a bias looked up for each pair of places, by a buffer
    is_known |= operator.name == "embedding"
    return node.output is not None and is_known
