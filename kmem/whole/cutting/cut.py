"""A graph cut into pieces, each a problem of its own.

A piece is a run of neighbouring nodes, so that pieces can be called one after another. The tree of
submodules says where to cut: a submodule with few heavy operators (products, convolutions,
attention, recurrences) is one piece, a larger one is cut into its parts. Light operators join what
feeds them, or what they feed where they reduce. A loop over time (loops.py) is one piece, and so is
a chunked scan (scans.py). Views are not handed from piece to piece: who reads one makes it anew of
what it views.

A stretch is all that runs between operators that must stay the library's: of most models, all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from kmem.problem.graph import Node, OpGraph, Placeholder, live_nodes
from kmem.problem.operators.row import Convolution, Product, Reduction, Scan
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import TensorSpec
from kmem.whole.cutting.loops import Loop, find_loops
from kmem.whole.cutting.scans import find_scans
from kmem.whole.graphs.drawing import is_random
from kmem.whole.graphs.needs import stays_the_librarys
from kmem.whole.graphs.tidying import changes_what_it_reads

#: Heavy operators of a piece: an attention has its four projections and the attention itself.
MOST_HEAVY = 6
#: Nodes of a piece that are no views, and of a stretch: a first kernel of DenseNet121, of 430, is
#: written in a minute on two cores.
MOST_NODES, MOST_IN_STRETCH = 48, 800

#: Heavy operators that the table of operators has no row for.
_HEAVY_NAMES = ("attention", "lstm", "gru", "rnn_", "einsum", "matmul", "mm", "conv", "fft")


#: Operators whose results nothing can be held against.
_UNFILLED = ("aten.empty", "aten.new_empty")


#: In this order torch.export has what a graph starts from, so a piece is known by the hash that its
#: own file has.
_EXPORTED = ("parameter", "buffer", "constant")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some nodes of a segment's graph as a graph of their own.

    `inputs`, `state` and `outputs` name values of the segment: what each placeholder of kind input,
    each other placeholder, and each output of `graph` stands for there. `nodes` are those that it
    replaces; views that it makes anew for itself are not among them.
    """

    graph: OpGraph
    module: str  # the submodule that holds all of it
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    state: tuple[str, ...]  # state_dict names, in the order of the graph's placeholders
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring nodes from `start` to before `end`."""

    start: int
    end: int


def cut(graph: OpGraph, costs: Mapping[str, float], *, backward: bool = False) -> tuple[Piece, ...]:
    """The pieces of a graph in the order in which they run; what is in none is the library's.

    Args:
        costs: of each node by name, in milliseconds; views cost nothing.
        backward: whether pieces are to have a backward; some operators then are in none.
    """
    runs = []
    before = 0
    for loop in _loops_and_scans(graph):
        runs += _split(graph, costs, _Run(before, loop.start), "")
        runs.append(_Run(loop.start, loop.end))
        before = loop.end
    runs += _split(graph, costs, _Run(before, len(graph.nodes)), "")
    found = [
        _piece(graph, nodes, costs)
        for run in runs
        for nodes in _without_librarys(graph, run, backward)
    ]
    return tuple(piece for piece in found if piece is not None)


def stretches(
    graph: OpGraph, costs: Mapping[str, float], *, backward: bool = False
) -> tuple[Piece, ...]:
    """All that runs between what must stay the library's, where it is several pieces.

    Args:
        costs: of each node by name, in milliseconds; views cost nothing.
        backward: as of `cut`.
    """
    # in the model's own order: memory then knows it as the model when that is a problem itself
    order = {each.name: place for place, each in enumerate(graph.placeholders)}
    found = [
        _piece(graph, nodes, costs, order)
        for nodes in _without_librarys(graph, _Run(0, len(graph.nodes)), backward)
        if sum(costs[node.name] > 0 for node in nodes) <= MOST_IN_STRETCH
    ]
    parts = [set(piece.nodes) for piece in cut(graph, costs, backward=backward)]
    return tuple(
        piece
        for piece in found
        if piece is not None and sum(part <= set(piece.nodes) for part in parts) > 1
    )


def _loops_and_scans(graph: OpGraph) -> list[Loop]:
    """Loops and scans in order; of two that overlap the first."""
    found: list[Loop] = []
    for each in sorted([*find_loops(graph), *find_scans(graph)], key=lambda each: each.start):
        if not found or each.start >= found[-1].end:
            found.append(each)
    return found


def _without_librarys(graph: OpGraph, run: _Run, backward: bool) -> list[tuple[Node, ...]]:
    """A run parted by nodes that change state, draw, or fill nothing, which stay the library's.

    With a backward so do those whose backward is the library's alone.
    """
    parts: list[list[Node]] = [[]]
    for node in graph.nodes[run.start : run.end]:
        is_librarys = changes_what_it_reads(node) or is_random(node)
        is_librarys |= node.target.startswith(_UNFILLED)
        if is_librarys or (backward and stays_the_librarys(node)):
            parts.append([])
        else:
            parts[-1].append(node)
    return [tuple(part) for part in parts if part]


def is_heavy(node: Node) -> bool:
    """Whether an operator does more than a few operations for each of its elements."""
    operator = find_operator(node.target)
    if operator is not None and isinstance(operator.lowering, Product | Convolution | Scan):
        return True
    name = node.target.removeprefix("aten.").split(".")[0]
    return any(each in name for each in _HEAVY_NAMES)


def _reduces(graph: OpGraph, nodes: Iterable[Node]) -> bool:
    return any(isinstance(lowering_of(graph, node), Reduction) for node in nodes)


# --- where to cut


def _split(graph: OpGraph, costs: Mapping[str, float], run: _Run, path: str) -> list[_Run]:
    """A submodule's nodes as runs that are small enough."""
    nodes = graph.nodes[run.start : run.end]
    if _is_small(nodes, costs):
        return [run]
    parts: list[tuple[_Run, str | None]] = []
    for place in range(run.start, run.end):
        child = _child(graph.nodes[place].module, path)
        if (
            parts
            and parts[-1][1] == child
            and (child is not None or _goes_on(graph, costs, parts[-1][0], place))
        ):
            parts[-1] = (_Run(parts[-1][0].start, place + 1), child)
        else:
            parts.append((_Run(place, place + 1), child))
    if len(parts) == 1 and parts[0][1] is not None:
        return _split(graph, costs, run, parts[0][1])
    found: list[list[_Run]] = []
    for part, child in parts:
        inner = [part] if child is None else _split(graph, costs, part, child)
        found.append(inner)
    return _joined(graph, costs, found)


def _goes_on(graph: OpGraph, costs: Mapping[str, float], run: _Run, place: int) -> bool:
    """Whether a node joins those before it in the same forward: heavy ones are fused, too."""
    is_busy = any(map(is_heavy, graph.nodes[run.start : run.end]))
    return is_busy and _fits(graph, costs, run, _Run(place, place + 1))


def _child(module: str, path: str) -> str | None:
    """The submodule of a path in which a node is; None for a node of the path's own forward."""
    inside = module[len(path) :].lstrip(".") if module.startswith(path) else ""
    if not inside:
        return None
    return f"{path}.{inside.split('.')[0]}" if path else inside.split(".")[0]


def _is_small(nodes: Sequence[Node], costs: Mapping[str, float]) -> bool:
    busy = [node for node in nodes if costs[node.name] > 0]
    return sum(map(is_heavy, busy)) <= MOST_HEAVY and len(busy) <= MOST_NODES


def _joined(
    graph: OpGraph, costs: Mapping[str, float], parts: Sequence[Sequence[_Run]]
) -> list[_Run]:
    """Light runs put to their neighbours.

    A part that is several pieces already stays as it is, but for its last, which light operators
    may follow.
    """
    found: list[_Run] = []
    waiting: _Run | None = None  # light, for what comes next
    for part in parts:
        for run in part:
            nodes = graph.nodes[run.start : run.end]
            if waiting is not None:
                run = _Run(waiting.start, run.end)
                waiting = None
            if any(map(is_heavy, nodes)):
                found.append(run)
            elif found and not _reduces(graph, nodes) and _fits(graph, costs, found[-1], run):
                found[-1] = _Run(found[-1].start, run.end)
            else:
                waiting = run
    if waiting is not None:
        if found and _fits(graph, costs, found[-1], waiting):
            found[-1] = _Run(found[-1].start, waiting.end)
        else:
            found.append(waiting)
    return found


def _fits(graph: OpGraph, costs: Mapping[str, float], one: _Run, other: _Run) -> bool:
    return _is_small(graph.nodes[one.start : other.end], costs)


# --- a run as a problem


def _piece(
    graph: OpGraph,
    nodes: Sequence[Node],
    costs: Mapping[str, float],
    order: Mapping[str, int] = MappingProxyType({}),
) -> Piece | None:
    """None for what is no problem: nothing to compute, or no tensor given.

    Args:
        order: in which inputs, parameters and buffers stand; else as they are read.
    """
    inside = {node.name for node in nodes}
    if not any(costs[node.name] > 0 for node in nodes):
        return None
    kept = [*_views_before(graph, nodes, inside), *nodes]
    made = {node.name for node in kept}
    outputs = [
        node.name
        for node in nodes
        if node.output is not None
        and (
            node.name in graph.outputs
            or any(user.name not in inside for user in graph.users(node.name))
        )
    ]
    outputs = _read_elsewhere(graph, nodes, inside, outputs)
    if not outputs or not all(isinstance(graph.node(n).output, TensorSpec) for n in outputs):
        return None
    kept = live_nodes(kept, outputs)
    given = list(dict.fromkeys(name for node in kept for name in node.refs() if name not in made))
    placeholders = [_placeholder(graph, name) for name in given]
    inputs = [each for each in placeholders if each.kind == "input"]
    inputs.sort(key=lambda each: order.get(each.name, len(order)))
    if not any(each.spec is not None for each in inputs):
        return None
    held = [each for each in placeholders if each.kind != "input"]
    held.sort(key=lambda each: (_EXPORTED.index(each.kind), order.get(each.name, 0)))
    renamed = [
        replace(each, target=f"p{place}") if each.kind != "constant" else each
        for place, each in enumerate(held)
    ]
    own = OpGraph(
        (*renamed, *inputs),
        tuple(replace(node, module="") for node in kept),
        tuple(outputs),
        len(outputs) > 1,
        graph.training,
        graph.mode_matters,
    )
    return Piece(
        own,
        _common(node.module for node in nodes if costs[node.name] > 0),
        tuple(node.name for node in nodes),
        tuple(each.name for each in inputs),
        tuple(each.target for each in held if each.kind != "constant"),
        tuple(outputs),
    )


def _is_view(node: Node | None) -> bool:
    operator = find_operator(node.target) if node is not None else None
    return operator is not None and operator.is_view and not operator.may_copy


def _views_before(graph: OpGraph, nodes: Sequence[Node], inside: set[str]) -> list[Node]:
    """The views that nodes read from outside, and what these view, in execution order."""
    found: set[str] = set()
    todo = [name for node in nodes for name in node.refs() if name not in inside]
    while todo:
        node = graph.node(todo.pop())
        if node is not None and _is_view(node) and node.name not in found:
            found.add(node.name)
            todo += [name for name in node.refs() if name not in inside]
    return sorted((graph.node(name) for name in found), key=lambda node: graph.place(node.name))


def _read_elsewhere(
    graph: OpGraph, nodes: Sequence[Node], inside: set[str], outputs: Sequence[str]
) -> list[str]:
    """The outputs in which a view that is only read elsewhere stands for what it views."""
    found: dict[str, None] = {}
    for name in outputs:
        while name not in graph.outputs and _is_view(graph.node(name)):
            base = graph.node(name).refs()[0]
            if base not in inside:
                name = ""  # others make it anew from what they are given
                break
            name = base
        if name:
            found[name] = None
    order = {node.name: place for place, node in enumerate(nodes)}
    return sorted(found, key=order.__getitem__)


def _placeholder(graph: OpGraph, name: str) -> Placeholder:
    known = graph.placeholder(name)
    if known is not None:
        return known
    output = graph.node(name).output
    return Placeholder(name, "input", "", output if isinstance(output, TensorSpec) else None)


def _common(modules: Iterable[str]) -> str:
    """The innermost submodule around all."""
    paths = [module.split(".") if module else [] for module in modules]
    common = paths[0]
    for path in paths[1:]:
        same = 0
        while same < min(len(common), len(path)) and common[same] == path[same]:
            same += 1
        common = common[:same]
    return ".".join(common)
