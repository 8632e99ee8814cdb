"""A recurrence that is stepped through in Python becomes one operator over all its steps.

Steps are cells of torch (`rnn_tanh_cell`, `rnn_relu_cell`, `gru_cell`, `lstm_cell`), or tanh or
relu of a linear map of an input and the hidden state: of both side by side, or of each. Inputs are
the slices of one tensor along its first or second dimension, in order, all of them. What reads the
hidden states may be a stack, also of one linear map of each, which then maps all at once, and
whatever reads the last. Not covered: steps from the end, cells on top of one another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kmem.algebra.editing import CONTIGUOUS, CannotRewrite, GraphEditor
from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.records import Contract, TensorSpec
from kmem.rewrites import Rewrite, Rewriting

_CELLS = {
    "aten.rnn_tanh_cell.default": "rnn_tanh",
    "aten.rnn_relu_cell.default": "rnn_relu",
    "aten.gru_cell.default": "gru",
    "aten.lstm_cell.default": "lstm",
}
_POINTWISE = {"aten.tanh.default": "rnn_tanh", "aten.relu.default": "rnn_relu"}
#: Fewer are no loop.
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class Weights:
    """Of a step: of the input and of the hidden state, or of both side by side, and the biases.

    `columns` is how many columns of one weight belong to the input, and whether it comes first.
    """

    of_input: Arg
    of_hidden: Arg
    biases: tuple[Arg, ...]  # one, two, or none
    columns: tuple[int, bool] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: names of what it reads and makes; the cell's state of an LSTM comes second."""

    node: str
    kind: str
    x: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    weights: Weights


class RollRecurrence(Rewrite):
    """h_t = f(W x_t + U h_(t-1) + b) for every t, in one operator."""

    def rewritings(self, graph: OpGraph, contract: Contract) -> Sequence[Rewriting]:
        """Every loop, at its first step."""
        if len(graph.nodes) < 2 * _LEAST_STEPS:
            return []
        steps = {step.after[0]: step for node in graph.nodes for step in _read_step(graph, node)}
        going_on = {step.before[0] for step in steps.values()}
        found = []
        for name in steps:
            if name in going_on:
                continue
            loop = _read_loop(graph, steps, name)
            if loop is None:
                continue
            try:
                site, made = _roll(graph, *loop)
            except CannotRewrite:
                continue
            count = len(loop[0])
            reason = f"{count} steps of the same weights are one recurrence, inputs multiplied once"
            found.append(Rewriting(site, "recurrent", made, reason, ()))
        return found


# --- what is read


def _read_step(graph: OpGraph, node: Node) -> Iterator[Step]:
    """At most one."""
    if node.target in _CELLS:
        kind = _CELLS[node.target]
        states = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        after = [node.name]
        if kind == "lstm":
            takers = {user.args[1]: user.name for user in graph.users(node.name)}
            after = [takers.get(place, "") for place in (0, 1)]
        biases = tuple(each for each in node.args[4:6] if each is not None)
        refs = (node.args[0], *states)
        if after[0] and len(biases) in (0, 2) and all(isinstance(each, Ref) for each in refs):
            weights = Weights(node.args[2], node.args[3], biases)
            before = tuple(each.name for each in states)
            yield Step(node.name, kind, refs[0].name, before, tuple(after), weights)
    elif node.target in _POINTWISE and isinstance(node.args[0], Ref):
        source = graph.node(node.args[0].name)
        if source is not None and graph.has_one_user(source.name):
            yield from _read_written(graph, node, source)


def _read_written(graph: OpGraph, node: Node, source: Node) -> Iterator[Step]:
    """tanh or relu of a linear map, of what lies side by side or of each; twice where both fit."""
    kind = _POINTWISE[node.target]
    if source.target == "aten.linear.default":
        joined = graph.node(source.args[0].name)
        bias = source.args[2:3] if source.args[2:3] != (None,) else ()
        if joined is None or joined.target != "aten.cat.default" or len(joined.args[0]) != 2:
            return
        rank = len(joined.spec.shape)
        if joined.args[1:2] not in ((1,), (-1,)) or rank != 2:
            return
        one, other = joined.args[0]
        for x, h, is_first in ((one, other, True), (other, one, False)):
            if _slice_of(graph, x.name) is not None:
                columns = graph.spec(x.name).shape[1], is_first
                weights = Weights(source.args[1], source.args[1], bias, columns)
                yield Step(node.name, kind, x.name, (h.name,), (node.name,), weights)
                return
    elif source.target == "aten.add.Tensor" and not source.kwargs and len(source.args) == 2:
        maps = [graph.node(each.name) if isinstance(each, Ref) else None for each in source.args]
        if not all(each is not None and each.target == "aten.linear.default" for each in maps):
            return
        for x, h in (maps, maps[::-1]):
            if _slice_of(graph, x.args[0].name) is not None:
                biases = tuple(
                    each.args[2] for each in (x, h) if len(each.args) > 2 and each.args[2]
                )
                weights = Weights(x.args[1], h.args[1], biases)
                before = (h.args[0].name,)
                yield Step(node.name, kind, x.args[0].name, before, (node.name,), weights)
                return


def _slice_of(graph: OpGraph, name: str) -> tuple[str, int, int] | None:
    """The tensor of three dimensions that a value is one place of, along which, and the place."""
    node = graph.node(name)
    if node is None or not isinstance(node.output, TensorSpec) or len(node.output.shape) != 2:
        return None
    if node.target == "aten.select.int":
        source = node.args[0]
        dim, place = node.args[1:]
    elif node.target == "getitem":
        parts = graph.node(node.args[0].name)
        if parts is None or parts.target != "aten.unbind.int":
            return None
        source, dim = parts.args[0], (*parts.args[1:], 0)[0]
        place = node.args[1]
    else:
        return None
    if not isinstance(source, Ref) or len(graph.spec(source.name).shape) != 3:
        return None
    dim %= 3
    return source.name, dim, place % graph.spec(source.name).shape[dim]


def _read_loop(
    graph: OpGraph, steps: dict[str, Step], last: str
) -> tuple[list[Step], str, int] | None:
    """The steps that lead to the last one, what they are given, and along which dimension."""
    loop = [steps[last]]
    while (earlier := steps.get(loop[-1].before[0])) is not None:
        same = (earlier.kind, earlier.weights) == (loop[-1].kind, loop[-1].weights)
        if not same or earlier.after != loop[-1].before:
            break
        loop.append(earlier)
    loop.reverse()
    places = [_slice_of(graph, step.x) for step in loop]
    if len(loop) < _LEAST_STEPS or places[0] is None:
        return None
    source, dim = places[0][:2]
    is_all = places == [(source, dim, place) for place in range(len(loop))]
    if not is_all or dim == 2 or graph.spec(source).shape[dim] != len(loop):
        return None
    return loop, source, dim


# --- what is written


def _roll(graph: OpGraph, loop: list[Step], source: str, dim: int) -> tuple[str, OpGraph]:
    """The first step, and the graph in which nothing of the loop is left.

    Raises CannotRewrite: if something reads a step in the middle.
    """
    readers = [*_last_states(graph, loop), *_sequences(graph, loop)]
    readers.sort(key=lambda reader: graph.place(reader[0]))
    if not readers:
        raise CannotRewrite("nothing reads it")
    editor = GraphEditor(graph, readers[0][0])
    made = _write_recurrence(editor, loop, source, dim)
    rolled = editor.replaced_all({name: write(editor, made) for name, write in readers})
    left = {node.name for node in rolled.nodes} - {name for name, _ in readers}
    if any(name in left for step in loop for name in step.after):
        raise CannotRewrite("something reads a step in the middle")
    return loop[0].node, rolled


#: A place whose value is replaced, and what writes the value from output, last state and last cell.
_Reader = tuple[str, Callable[[GraphEditor, tuple[Ref, ...]], Ref]]


def _last_states(graph: OpGraph, loop: list[Step]) -> Iterator[_Reader]:
    sequences = {name for name, _ in _sequences(graph, loop)}
    for place, name in enumerate(loop[-1].after):
        users = graph.users(name) if name else ()
        is_read = any(
            user.name not in sequences and not _only_feeds(graph, user, sequences) for user in users
        )
        if name and (name in graph.outputs or is_read):

            def write(editor: GraphEditor, made: tuple[Ref, ...], place: int = place) -> Ref:
                return editor.call("aten.squeeze.dim", made[1 + place], 0)

            yield name, write


def _only_feeds(graph: OpGraph, node: Node, sequences: set[str]) -> bool:
    readers = {user.name for user in graph.users(node.name)}
    return bool(readers) and readers <= sequences and node.name not in graph.outputs


def _sequences(graph: OpGraph, loop: list[Step]) -> Iterator[_Reader]:
    """What stacks the hidden states of all steps, as they are or each by the same linear map."""
    hidden = [Ref(step.after[0]) for step in loop]
    for node in graph.nodes:
        if node.target != "aten.stack.default" or len(node.args[0]) != len(loop):
            continue
        stacked = tuple(node.args[0])
        along = (*node.args[1:], 0)[0] % 3
        if stacked == tuple(hidden):
            yield node.name, _sequence_writer(graph, loop, along, ())
            continue
        maps = [graph.node(each.name) for each in stacked]
        if not all(each is not None and each.target == "aten.linear.default" for each in maps):
            continue
        if [each.args[0] for each in maps] == hidden and len({each.args[1:] for each in maps}) == 1:
            yield node.name, _sequence_writer(graph, loop, along, maps[0].args[1:])


def _sequence_writer(
    graph: OpGraph, loop: list[Step], along: int, weights: tuple[Arg, ...]
) -> Callable[[GraphEditor, tuple[Ref, ...]], Ref]:
    place = _slice_of(graph, loop[0].x)
    dim = place[1] if place is not None else 0

    def write(editor: GraphEditor, made: tuple[Ref, ...]) -> Ref:
        value = made[0]
        if weights:
            value = editor.call("aten.linear.default", value, *weights)
        batch = 1 - dim
        order = {0: (dim, batch, 2), 1: (batch, dim, 2), 2: (batch, 2, dim)}[along]
        if order != (0, 1, 2):
            value = editor.call("aten.permute.default", value, order)
        return value

    return write


def _write_recurrence(
    editor: GraphEditor, loop: list[Step], source: str, dim: int
) -> tuple[Ref, ...]:
    """Output, last state and, of an LSTM, last cell."""
    first = loop[0]
    states = tuple(editor.call("aten.unsqueeze.default", Ref(name), 0) for name in first.before)
    weights = _write_weights(editor, first.weights)
    rest = (weights, bool(first.weights.biases), 1, 0.0, False, False, dim == 1)
    given = states if first.kind == "lstm" else states[0]
    return editor.several(f"aten.{first.kind}.input", Ref(source), given, *rest)


def _write_weights(editor: GraphEditor, weights: Weights) -> tuple[Arg, ...]:
    pair = (weights.of_input, weights.of_hidden)
    if weights.columns is not None:
        columns, is_first = weights.columns
        width = editor.spec(weights.of_input).shape[1]
        of_x, of_h = (0, columns), (columns, width)
        if not is_first:
            of_x, of_h = (width - columns, width), (0, width - columns)
        parts = [
            editor.call("aten.slice.Tensor", weights.of_input, 1, low, high)
            for low, high in (of_x, of_h)
        ]
        pair = tuple(
            editor.call("aten.clone.default", part, memory_format=CONTIGUOUS) for part in parts
        )
    if not weights.biases:
        return pair
    biases = weights.biases
    if len(biases) == 1:
        biases = (*biases, editor.call("aten.zeros_like.default", biases[0]))
    return (*pair, *biases)


REWRITE = RollRecurrence()
