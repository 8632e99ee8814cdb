"""A captured graph without what only tracing needed, and without work in place where that is free.

Pieces are cut from graphs in which every value is made once: a node that works in place on a value
that the graph made, and of which no other view is read later, is written as the node that makes a
new value.
"""

from dataclasses import replace

import torch

from kmem.problem.graph import Node, OpGraph, Ref, live_nodes
from kmem.problem.operators.table import find_operator, may_be_view
from kmem.records import TensorSpec
from kmem.whole.graphs.drawing import is_random
from kmem.whole.graphs.pairing import in_pairs

_DROPOUTS = tuple(
    f"aten.{name}.default"
    for name in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")
)
_VIEW, _RESHAPE = "aten.view.default", "aten.reshape.default"
_CHOOSES_STRIDES = ("aten.scaled_dot_product_attention.default",)


def tidied(graph: OpGraph) -> OpGraph:
    """The graph without assertions, values that nothing reads, and needless work in place.

    Sums of products of many values are products of two.
    """
    nodes = [node for node in graph.nodes if "_assert_" not in node.target]
    graph = _without_dead(_without_idle_dropout(replace(graph, nodes=tuple(nodes))))
    graph = _without_dead(_out_of_place(graph))
    return in_pairs(_counts_last(_free_of_strides(graph)))


def _without_idle_dropout(graph: OpGraph) -> OpGraph:
    """The graph without dropout that drops nothing, which returns the very tensor that it is given.

    Its schema promises a new one, so that work in place on the result would miss what it was.
    """
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        node = node.reading(renamed)
        if node.target in _DROPOUTS and (node.args[1] == 0 or node.args[2:] == (False,)):
            renamed[node.name] = node.refs()[0]
        else:
            nodes.append(node)
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _free_of_strides(graph: OpGraph) -> OpGraph:
    """The graph with a reshape for each view whose strides are the library's to choose.

    Attention on a GPU returns heads beside each other or one after the other, as its algorithm has
    it, and not as on the CPU, where the graph was traced: what was a view there may need a copy,
    and a `contiguous()` in front of it was left out if it had nothing to do.
    """
    chosen: set[str] = set()
    nodes = []
    for node in graph.nodes:
        reads = node.refs()
        if node.target in _CHOOSES_STRIDES:
            chosen.add(node.name)
        elif may_be_view(node.target) and reads and reads[0] in chosen:
            chosen.add(node.name)
            node = replace(node, target=_RESHAPE) if node.target == _VIEW else node
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _counts_last(graph: OpGraph) -> OpGraph:
    """Numbers that a forward changes and reads nowhere else are changed at its end.

    So counters of batches, one in every norm, do not part its neighbours. Tensors stay where they
    are: another name may stand for the same memory.
    """
    late = [
        node
        for node in graph.nodes
        if node.is_in_place
        and all(graph.node(name) is None for name in node.refs())
        and all(graph.users(name) == (node,) for name in node.refs())
        and isinstance(node.output, TensorSpec)
        and node.output.shape == ()
        and not graph.users(node.name)
        and node.name not in graph.outputs
    ]
    kept = [node for node in graph.nodes if node not in late]
    return replace(graph, nodes=(*kept, *late))


def _without_dead(graph: OpGraph) -> OpGraph:
    # a draw that nobody reads moves the generator for those that come after
    live = live_nodes(
        graph.nodes, graph.outputs, lambda node: changes_what_it_reads(node) or is_random(node)
    )
    return replace(graph, nodes=tuple(live))


def changes_what_it_reads(node: Node) -> bool:
    """Whether an operator writes to what it reads, as its schema says, under whatever name."""
    found = _schema(node)
    return node.is_in_place or (found is not None and found.is_mutable)


def _schema(node: Node) -> torch.FunctionSchema | None:
    parts = node.target.removeprefix("aten.").split(".")
    found = getattr(getattr(torch.ops.aten, parts[0], None), parts[-1], None)
    return getattr(found, "_schema", None)


def _out_of_place(graph: OpGraph) -> OpGraph:
    renamed: dict[str, str] = {}
    nodes: list[Node] = []
    for place, node in enumerate(graph.nodes):
        node = node.reading(renamed)
        target = _free_form(graph, graph.nodes[place], place)
        if target is not None:
            written = node.refs()[0]
            renamed = {name: node.name if now == written else now for name, now in renamed.items()}
            renamed[written] = node.name
            node = replace(node, target=target)
        nodes.append(node)
    outputs = tuple(renamed.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _free_form(graph: OpGraph, node: Node, place: int) -> str | None:
    """The target that makes a new value instead; None where the old one must be written."""
    if not node.is_in_place or not node.args or not isinstance(node.args[0], Ref):
        return None
    parts = node.target.split(".")
    free = ".".join([parts[0], parts[1].removesuffix("_"), *parts[2:]])
    packet = getattr(torch.ops.aten, parts[1].removesuffix("_"), None)
    if packet is None or not hasattr(packet, parts[-1]):
        return None
    family = _same_memory(graph, node.args[0].name)
    if family is None:
        return None
    later = {name for each in graph.nodes[place + 1 :] for name in each.refs()}
    later |= set(graph.outputs)
    others = family - {node.args[0].name, node.name}
    others -= _in_place_results(graph, node.args[0].name)
    return free if not others & later else None


def _same_memory(graph: OpGraph, name: str) -> set[str] | None:
    """Every value that may share memory with one; None if a placeholder does."""
    root = name
    while (maker := graph.node(root)) is not None and _shares(maker):
        root = maker.refs()[0]
    if graph.node(root) is None:
        return None
    family, todo = {root}, [root]
    while todo:
        for user in graph.users(todo.pop()):
            if _shares(user) and user.name not in family and user.refs()[0] in family:
                family.add(user.name)
                todo.append(user.name)
    return family


def _in_place_results(graph: OpGraph, name: str) -> set[str]:
    """Values that are a value itself, worked on in place: they are the same tensor."""
    root = name
    while (maker := graph.node(root)) is not None and maker.is_in_place:
        root = maker.refs()[0]
    found, todo = {root}, [root]
    while todo:
        for user in graph.users(todo.pop()):
            if user.is_in_place and user.refs()[0] in found and user.name not in found:
                found.add(user.name)
                todo.append(user.name)
    return found


def _shares(node: Node) -> bool:
    is_unknown = find_operator(node.target) is None and not _makes_new(node)
    return node.is_in_place or may_be_view(node.target) or is_unknown


def _makes_new(node: Node) -> bool:
    """Whether an operator's schema says that its result shares no memory with what it reads."""
    found = _schema(node)
    return found is not None and all(result.alias_info is None for result in found.returns)
