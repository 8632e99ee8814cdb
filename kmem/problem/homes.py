"""Where a value may lie within the result of a concatenation, so that nothing copies it there.

`torch.cat` copies its parts. A part that is written into its slice of the result from the start
needs no copy, and one that is a concatenation itself, as in dense blocks, brings its own parts
along. Such a part has the strides of the whole: `find_homes` finds those whose strides say so,
`possible_homes` all that could have them, which a rewrite then gives them.

A part may lie there only where nobody can tell: no other name may be changed in place, none is
returned, and a part that is a view of something else lies elsewhere already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Home:
    """`length` places of dimension `dim` of the value `cat`, from `start` on."""

    cat: str
    dim: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Concatenation:
    """A call of `torch.cat`: the values that it puts together along `dim`, and where each begins.

    Placeholders may be among its parts, and values may be there twice.
    """

    name: str
    dim: int
    parts: tuple[str, ...]
    starts: tuple[int, ...]


def read_concatenation(graph: OpGraph, node: Node) -> Concatenation | None:
    """The concatenation of a node; None for other nodes, and where parts differ in rank or type."""
    if lowering_of(graph, node) is not Layout.CONCATENATE:
        return None
    call = find_operator(node.target).call(graph, node)
    tensors, dim = call["tensors"], call["dim"]
    rank = len(node.spec.shape)
    if not isinstance(tensors, tuple) or not isinstance(dim, int) or len(tensors) < 2:
        return None
    parts = [tensor.name for tensor in tensors if isinstance(tensor, Ref)]
    specs = [graph.spec(name) for name in parts]
    if len(parts) < len(tensors) or any(
        len(spec.shape) != rank or spec.dtype != node.spec.dtype or spec.numel == 0
        for spec in specs
    ):
        return None
    sizes = [spec.shape[dim] for spec in specs]
    starts = tuple(sum(sizes[:place]) for place in range(len(sizes)))
    return Concatenation(node.name, dim % rank, tuple(parts), starts)


def possible_homes(graph: OpGraph) -> dict[str, Home]:
    """By value, the slice of a concatenation that it could lie in, whatever its strides are.

    A value has one home: in the last of several concatenations. Those of a concatenation stand
    behind its own.
    """
    homes: dict[str, Home] = {}
    drawn = _of_inputs(graph)
    for node in reversed(graph.nodes):
        cat = read_concatenation(graph, node)
        if cat is None or _is_changed(graph, node.name):
            continue
        own = homes.get(cat.name)
        if own is None and not node.spec.is_contiguous:
            continue
        if own is not None and own.dim != cat.dim:
            del homes[cat.name]
        for name, start in zip(cat.parts, cat.starts, strict=True):
            if name in drawn and name not in homes and _may_lie(graph, cat, name):
                homes[name] = Home(cat.name, cat.dim, start, graph.spec(name).shape[cat.dim])
    return homes


def find_homes(graph: OpGraph) -> dict[str, Home]:
    """By value, the slice of a concatenation that it lies in: its strides are those of the whole.

    Where kernels write these values into their slices, what is left of a concatenation is a copy
    of its other parts.
    """
    found: dict[str, Home] = {}
    for name, home in possible_homes(graph).items():
        whole = graph.spec(home.cat)
        is_settled = home.cat in found or whole.is_contiguous
        if is_settled and graph.spec(name).stride == whole.stride:
            found[name] = home
    return found


def home_in_memory(homes: Mapping[str, Home], name: str) -> Home:
    """The slice of an allocation that a value with a home is: of the outermost concatenation."""
    home = homes[name]
    while home.cat in homes:
        outer = homes[home.cat]
        home = replace(home, cat=outer.cat, start=outer.start + home.start)
    return home


def copied_parts(graph: OpGraph, node: Node, homes: Mapping[str, Home]) -> list[tuple[str, Home]]:
    """The parts of a concatenation that have to be copied into its result, and where to."""
    cat = read_concatenation(graph, node)
    if cat is None:
        return []
    return [
        (name, Home(cat.name, cat.dim, start, graph.spec(name).shape[cat.dim]))
        for name, start in zip(cat.parts, cat.starts, strict=True)
        if name not in homes or homes[name].cat != cat.name
    ]


def _of_inputs(graph: OpGraph) -> set[str]:
    """The values that an input of the forward decides: others are made once."""
    found = {each.name for each in graph.placeholders if each.kind == "input"}
    for node in graph.nodes:
        if any(name in found for name in node.refs()):
            found.add(node.name)
    return found


def _may_lie(graph: OpGraph, cat: Concatenation, name: str) -> bool:
    """Whether a part may be memory of the result from the time when it is made."""
    node = graph.node(name)
    if node is None or not isinstance(node.output, TensorSpec) or name in graph.outputs:
        return False
    if cat.parts.count(name) > 1 or not _is_fresh(graph, node):
        return False
    return all(not user.is_in_place and _is_reader(graph, user) for user in graph.users(name))


def _is_fresh(graph: OpGraph, node: Node) -> bool:
    """Whether a node makes memory that nothing else holds, or hands such memory on for the last
    time: changed in place, or as it is, by a dropout that drops nothing.
    """
    operator = find_operator(node.target)
    if operator is None:
        return False
    if operator.name == "layout" and lowering_of(graph, node) is not Layout.CONCATENATE:
        return False
    if not node.is_in_place and not operator.only_in_training:
        return True
    given = node.refs()[0]
    before = graph.node(given)
    return before is not None and graph.has_one_user(given) and _is_fresh(graph, before)


def _is_reader(graph: OpGraph, user: Node) -> bool:
    """Whether a user reads elements and hands no view of them on."""
    operator = find_operator(user.target)
    if operator is None or operator.only_in_training:
        return False
    return operator.name != "layout" or lowering_of(graph, user) is Layout.CONCATENATE


def _is_changed(graph: OpGraph, name: str) -> bool:
    """Whether a value, or a view of it, may be changed in place."""
    for user in graph.users(name):
        operator = find_operator(user.target)
        hands_on = operator is None or operator.name == "layout" or operator.only_in_training
        if user.is_in_place or (hands_on and _is_changed(graph, user.name)):
            return True
    return False
