"""A model put together again: its graph written out, with kernels in the places of pieces.

The artefact is a directory that `kmem.load` finds and `kmem.apply` binds to a model:

- composed.json: the segments with their guards, which kernel stands where, and how the rest runs;
- graph.py: for each segment a function that runs its graph, a call for each replaced piece;
- kernels/: the modules that runs have emitted, each with Model and ModelNew; of a piece in training
  two, its forward and its backward, of which one may be its problem, with Model alone.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from kmem.codegen.module.library_calls import write_arg, write_call, write_constant
from kmem.problem.graph import DEVICE, Node, OpGraph, Placeholder
from kmem.problem.operators.table import find_operator
from kmem.records import TensorSpec
from kmem.run.directory import RunDirectory
from kmem.whole.cutting.cut import Piece
from kmem.whole.cutting.pieces import PieceGroup
from kmem.whole.cutting.write_piece import python_name, renamed
from kmem.whole.graphs.capture import Captured, Segment
from kmem.whole.graphs.drawing import is_random
from kmem.whole.graphs.tidying import changes_what_it_reads

MANIFEST = "composed.json"
GRAPH, KERNELS = "graph.py", "kernels"
#: Of what is in composed.json.
VERSION = 2
#: How a graph's operators outside of the kernels run.
EAGER_REST, COMPILED_REST = "eager", "compiled"
#: The argument of batch_norm and instance_norm that says whether statistics are the inputs' own.
_TAKES_INPUTS_OWN = 5
#: The text of a module, and the numbers that its constructor takes.
Written: TypeAlias = tuple[str, Sequence[int]]
_HEAD = '''"""{name}, as kmem has put it together; composed.json says which kernel stands where."""

import torch
'''


def write_composed(
    directory: Path,
    captured: Captured,
    kernels: Mapping[str, Written],
    groups: Sequence[PieceGroup],
    *,
    problems: Mapping[str, Written] = MappingProxyType({}),
    backward: bool = False,
    rest: str = EAGER_REST,
) -> Path:
    """Write the artefact.

    Args:
        kernels: by name of a piece, or of its backward, its kernel's module.
        groups: the pieces of the model; those without a kernel stay as they are.
        problems: the same of problem files, for the half that has no kernel where the other has.
        backward: whether it may run where gradients are recorded.
        rest: how operators outside of the kernels run.

    Returns: the directory.
    """
    place = RunDirectory(directory)
    used = [group for group in groups if kernels.keys() & set(_halves(group))]
    written = {**problems, **kernels}
    for name in (name for group in used for name in _halves(group)):
        place.write_text(f"{KERNELS}/{name}.py", written[name][0])
    text = [_HEAD.format(name=captured.name)]
    segments = []
    for number, segment in enumerate(captured.segments):
        chosen = [
            (group, each.piece) for group in used for each in group.places if each.segment == number
        ]
        chosen.sort(key=lambda entry: segment.graph.place(entry[1].nodes[0]))
        if not chosen:
            continue
        pieces = [piece for _, piece in chosen]
        text.append("\n".join(_write_function(f"segment_{number}", segment, pieces)))
        described = [
            _describe_piece(group, piece, written, tuple(kernels)) for group, piece in chosen
        ]
        data = {**_describe(number, segment), "pieces": described, "backward": backward}
        segments.append(data)
    place.write_text(GRAPH, "\n\n".join(text) + "\n")
    data = {"version": VERSION, "model": captured.name, "rest": rest, "segments": segments}
    place.write_text(MANIFEST, json.dumps(data, indent=1) + "\n")
    return directory


def write_rest(directory: Path, rest: str) -> None:
    """Set how the operators outside of an artefact's kernels run."""
    data = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    text = json.dumps({**data, "rest": rest}, indent=1) + "\n"
    RunDirectory(directory).write_text(MANIFEST, text)


def _halves(group: PieceGroup) -> tuple[str, ...]:
    """Names of the modules of a piece."""
    return (group.name,) if group.joint is None else (group.name, group.backward_name)


def _describe(number: int, segment: Segment) -> dict[str, Any]:
    graph = segment.graph
    inputs = [each for each in graph.placeholders if each.kind == "input"]
    return {
        "function": f"segment_{number}",
        "path": segment.path,
        "training": graph.training,
        "modes": list(segment.modes),
        "hooks": segment.hooks,
        "ties": [list(names) for names in segment.ties],
        "inputs": segment.inputs,
        "outputs": segment.outputs,
        "leaves": [list(leaf) if isinstance(leaf, tuple) else leaf for leaf in segment.leaves],
        "given": [{**_given(each), "recorded": each.name in segment.recorded} for each in inputs],
        "state": [
            {
                "name": each.target,
                "shape": list(each.spec.shape),
                "dtype": each.spec.dtype,
                "recorded": each.name in segment.recorded,
            }
            for each in graph.placeholders
            if each.kind in ("parameter", "buffer")
        ],
    }


def _describe_piece(
    group: PieceGroup, piece: Piece, written: Mapping[str, Written], kernels: Collection[str]
) -> dict[str, Any]:
    return {
        "kernel": group.name,
        "init": list(written[group.name][1]),
        "is_kernel": group.name in kernels,
        "state": dict(_own_names(piece)),
        "module": piece.module,
        "returns_tuple": piece.graph.returns_tuple,
        "operator": _operator_of(piece.graph),
        "backward": None if group.joint is None else _describe_backward(group, written, kernels),
    }


def _describe_backward(
    group: PieceGroup, written: Mapping[str, Written], kernels: Collection[str]
) -> dict[str, Any]:
    """What goes from a piece's forward to its backward, as `Trained` has it."""
    joint, graph = group.joint, group.graph
    inputs = [each.name for each in graph.placeholders if each.kind == "input"]
    state = [each.name for each in graph.placeholders if each.kind in ("parameter", "buffer")]
    kinds = {"input": inputs, "state": state, "output": joint.forward.outputs}
    found = {name: [kind, place] for kind in kinds for place, name in enumerate(kinds[kind])}
    taken = [each for each in joint.backward.placeholders if each.kind == "input"]
    return {
        "kernel": group.backward_name,
        "init": list(written[group.backward_name][1]),
        "is_kernel": group.backward_name in kernels,
        "outputs": len(graph.outputs),
        "given": [found[name] for name in joint.given],
        "recorded": list(joint.recorded),
        "takes": [_spec(each.spec) for each in taken],
        "gradients": [joint.gradients.get(name) for name in (*inputs, *state)],
    }


def _own_names(piece: Piece) -> Iterator[tuple[str, str]]:
    """What a piece's kernel calls a parameter or buffer, and what the model does."""
    held = [each for each in piece.graph.placeholders if each.kind in ("parameter", "buffer")]
    for each, name in zip(held, piece.state, strict=True):
        yield each.target, name


def _operator_of(graph: OpGraph) -> dict[str, Any] | None:
    """What a kernel takes and makes, as an operator; None if it can be none."""
    made = [graph.node(name) for name in graph.outputs]
    if any(node is None for node in made):  # an operator's results share no memory with the rest
        return None
    return {
        "training": graph.training,
        "inputs": [_given(each) for each in graph.placeholders if each.kind == "input"],
        "outputs": [_spec(node.spec) for node in made if node is not None],
        "returns_tuple": graph.returns_tuple,
        "state": [
            {"name": each.target, **_spec(each.spec)}
            for each in graph.placeholders
            if each.kind in ("parameter", "buffer") and each.spec is not None
        ],
        "changes": list(_changed(graph)),
    }


def _changed(graph: OpGraph) -> Iterator[str]:
    """Buffers that a graph writes to: the running statistics of norms that take their inputs'."""
    buffers = {each.name: each.target for each in graph.placeholders if each.kind == "buffer"}
    for node in graph.nodes:
        is_norm = "batch_norm" in node.target or "instance_norm" in node.target
        if is_norm and node.args[_TAKES_INPUTS_OWN : _TAKES_INPUTS_OWN + 1] == (True,):
            yield from (buffers[name] for name in node.refs() if name in buffers)


def _given(each: Placeholder) -> dict[str, Any]:
    return {"value": each.value} if each.spec is None else _spec(each.spec)


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"shape": list(spec.shape), "stride": list(spec.stride), "dtype": spec.dtype}


# --- the function of a segment


def _write_function(name: str, segment: Segment, chosen: Sequence[Piece]) -> Iterator[str]:
    graph = segment.graph
    yield f"def {name}(state, pieces, inputs):"
    inputs = [each for each in graph.placeholders if each.kind == "input"]
    held = [each for each in graph.placeholders if each.kind in ("parameter", "buffer")]
    steps = _needed(graph, _steps(graph, chosen))
    read = {value for _, values, _ in steps for value in values} | set(graph.outputs)
    for place, each in enumerate(inputs):
        if each.name in read:
            yield f"    {python_name(each.name)} = inputs[{place}]"
    first = next((place for place, each in enumerate(inputs) if each.spec is not None), None)
    if first is not None:
        yield f"    {DEVICE.expression} = inputs[{first}].device"
    for each in graph.placeholders:
        if each.kind == "constant" and each.name in read:
            yield f"    {python_name(each.name)} = {write_constant(each)}"
    for place, each in enumerate(held):
        if each.name in read:
            yield f"    {python_name(each.name)} = state[{place}]"
    last = {value: number for number, (_, values, _) in enumerate(steps) for value in values}
    for number, (text, values, made) in enumerate(steps):
        yield f"    {text}"
        done = [
            python_name(value)
            for value in dict.fromkeys((*values, *made))
            if last.get(value, number) == number
            and value not in graph.outputs
            and graph.placeholder(value) is None
        ]
        if done:
            yield f"    del {', '.join(done)}"
    outputs = "".join(f"{python_name(name)}, " for name in graph.outputs)
    yield f"    return ({outputs.rstrip()})" if outputs else "    return ()"


#: One line of a function: its text, the values that it reads, and those that it makes.
_Step = tuple[str, tuple[str, ...], tuple[str, ...]]


def _steps(graph: OpGraph, chosen: Sequence[Piece]) -> list[tuple[_Step, Node | None]]:
    starts = {piece.nodes[0]: (number, piece) for number, piece in enumerate(chosen)}
    inside = {name for piece in chosen for name in piece.nodes}
    found: list[tuple[_Step, Node | None]] = []
    for node in graph.nodes:
        if node.name in starts:
            number, piece = starts[node.name]
            found.append((_write_piece(number, piece), None))
        # of a piece's own nodes views alone are written: whoever is no piece may read one
        if node.name not in inside or _may_be_remade(node):
            found.append((_write_node(graph, node), node))
    return found


def _write_piece(number: int, piece: Piece) -> _Step:
    made = ", ".join(map(python_name, piece.outputs))
    given = ", ".join(map(python_name, piece.inputs))
    target = f"({made},)" if piece.graph.returns_tuple else made
    return f"{target} = pieces[{number}]({given})", piece.inputs, piece.outputs


def _write_node(graph: OpGraph, node: Node) -> _Step:
    named = renamed(node)
    call = write_call(graph, named)
    if node.target == "getitem":
        call = f"{write_arg(named.args[0])}[{write_arg(named.args[1])}]"
    made = (node.name,) if node.output is not None else ()
    text = f"{python_name(node.name)} = {call}" if made else call
    return text, tuple(node.refs()), made


def _may_be_remade(node: Node) -> bool:
    operator = find_operator(node.target)
    return operator is not None and operator.is_view and not operator.may_copy


def _needed(graph: OpGraph, steps: Sequence[tuple[_Step, Node | None]]) -> list[_Step]:
    """Steps that an output or an effect depends on; views inside pieces that nobody reads go."""
    wanted, live = set(graph.outputs), []
    made_by_piece = {value for (_, _, made), node in steps if node is None for value in made}
    for step, node in reversed(steps):
        read, made = step[1:]
        is_effect = node is not None and (
            changes_what_it_reads(node) or is_random(node) or not made
        )
        is_double = node is not None and bool(set(made) & made_by_piece)
        if (wanted & set(made) or is_effect) and not is_double:
            live.append(step)
            wanted.update(read)
    return live[::-1]
