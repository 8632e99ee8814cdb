"""A piece's forward and backward as two graphs, each a problem of its own.

The forward is the piece as it was cut, with values from inside among its outputs that the backward
reads. The backward takes these, what the piece was given, and the gradients of its outputs; its
operators are those of autograd, as one trace of both found them, and what is light of the forward
and computed again. Both are made of operators alone: an eager run of the backward is eager's own.

Covered: what autograd traces on fake tensors, batch norms in training too, whose statistics only
the forward changes. Not covered: what draws random numbers (no piece has it), a second derivative.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node as FxNode
from torch.fx.experimental.proxy_tensor import make_fx

from kmem.host.deadline import DeadlinePassed, deadline
from kmem.problem.graph import Node, OpGraph, Placeholder
from kmem.problem.operators.table import may_be_view
from kmem.problem.tracing.calls import (
    Untraceable,
    read_call,
    stand_in,
    target_name,
    tensor_spec,
)
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.records import TensorSpec
from kmem.whole.cutting.write_piece import order_in_memory
from kmem.whole.graphs.joint import Joint
from kmem.whole.training.saving import WRITTEN_AND_READ, behind, choose_saved, is_view, operands

#: For one piece; the eight hundred operators of a stretch take a minute.
_DEADLINE_S = 120.0
#: Norms that take their inputs' statistics and change the running ones: places of these and of the
#: argument that says so.
_RUNNING, _TAKES_INPUTS_OWN = (3, 4), 5
_NORMS = ("aten.batch_norm.default", "aten.instance_norm.default")
#: What autograd writes around values that it keeps, which changes nothing.
_SAME = ("aten.detach.default", "aten.alias.default", "aten.lift_fresh.default")
#: Operators of autograd's traces by what the table of operators has for them, and how many of their
#: arguments that takes.
_SPELT: Mapping[str, tuple[str, int]] = {
    "aten._softmax.default": ("aten.softmax.int", 2),
    "aten._log_softmax.default": ("aten.log_softmax.int", 2),
    "aten._unsafe_view.default": ("aten.view.default", 2),
    "aten.sgn.default": ("aten.sign.default", 1),  # of real numbers
}


def find_joint(graph: OpGraph, leaves: Collection[str]) -> Joint | None:
    """The forward and backward of a piece; None if no output has a gradient.

    Args:
        leaves: placeholders whose gradients are needed.

    Raises Untraceable: if autograd's operators cannot be had, with the reason.
    """
    try:
        with deadline(_DEADLINE_S), quiet_fake_tensors():
            trace = _trace(graph, leaves)
    except DeadlinePassed as ex:
        raise Untraceable(f"its backward was not traced within {_DEADLINE_S:g} s") from ex
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as ex:  # autograd's own
        raise Untraceable(f"autograd refused it: {(str(ex).splitlines() or [''])[0]}") from ex
    return None if trace is None else _split(graph, trace)


@dataclass(frozen=True, slots=True)
class _Trace:
    """A forward and backward as autograd runs them, in execution order.

    `values` has the traced node of each tensor of the graph, `gradients` that of each gradient,
    `tangents` those of the gradients of outputs, whose places are in `recorded`.
    """

    nodes: Sequence[FxNode]
    values: Mapping[str, FxNode]
    gradients: Mapping[str, FxNode]
    tangents: Sequence[FxNode]
    recorded: tuple[int, ...]


def _trace(graph: OpGraph, leaves: Collection[str]) -> _Trace | None:
    pure = replace(graph, nodes=tuple(map(_without_running, graph.nodes)))
    tensors = [each for each in graph.placeholders if each.spec is not None]
    numbers = {each.name: each.value for each in graph.placeholders if each.spec is None}
    names = [each.name for each in tensors]
    made = [node.name for node in graph.nodes if isinstance(node.output, TensorSpec)]
    wanted = [name for name in names if name in leaves]
    recorded: list[int] = []

    def run(given: Sequence[torch.Tensor]) -> dict[str, Any]:
        values: dict[str, Any] = dict(zip(names, given, strict=True))

        def step(node: Node, before: object, evaluate: Callable[[], object]) -> object:
            values[node.name] = evaluate()
            return values[node.name]

        evaluate_graph(pure, {**numbers, **values}, step=step)
        return values

    def joint(given: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]) -> object:
        values = run(given)
        ends = [values[graph.outputs[place]] for place in recorded]
        sources = [values[name] for name in wanted]
        found = torch.autograd.grad(ends, sources, list(tangents), allow_unused=True)
        return [values[name] for name in made] + list(found)

    with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
        given = [_empty(each.spec).requires_grad_(each.name in leaves) for each in tensors]
        first = run(given)
        recorded += [n for n, name in enumerate(graph.outputs) if first[name].requires_grad]
        if not recorded:
            return None
        tangents = [_empty(tensor_spec(first[graph.outputs[place]])) for place in recorded]
        traced = make_fx(joint, tracing_mode="real")(given, tangents)
    _drop_idle(traced.graph)
    nodes = list(traced.graph.nodes)
    starts = [node for node in nodes if node.op == "placeholder"]
    found = nodes[-1].args[0]
    named = zip((*names, *made), (*starts[: len(names)], *found[: len(made)]), strict=True)
    ends = zip(wanted, found[len(made) :], strict=True)
    return _Trace(
        nodes[:-1],
        dict(named),
        {name: end for name, end in ends if end is not None},
        starts[len(names) :],
        tuple(recorded),
    )


def _empty(spec: TensorSpec) -> torch.Tensor:
    """A tensor without values; what has gaps in memory, or is expanded, is dense."""
    if order_in_memory(spec) is None:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="cpu")
    return stand_in(spec)


def _without_running(node: Node) -> Node:
    """A norm of its inputs' statistics that changes no others: gradients are the same."""
    if node.target not in _NORMS or node.args[_TAKES_INPUTS_OWN] is not True:
        return node
    args = [None if place in _RUNNING else arg for place, arg in enumerate(node.args)]
    return replace(node, args=tuple(args))


def _drop_idle(graph: torch.fx.Graph) -> None:
    """Let what only hands a value on go, as autograd's traces have it around each linear map."""
    for node in list(graph.nodes):
        _make_new(node)
        before = _before(node)
        if before is not None:
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _make_new(node: FxNode) -> None:
    """Have an operator that works in place, as those inside of composite ones do, make a new value.

    Raises Untraceable: if there are views of the old one, which then would not change.
    """
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or not operator._schema.is_mutable:
        return
    name, overload = str(operator).removeprefix("aten.").split(".")
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    written = node.all_input_nodes[0]
    views = [each for each in (written, *written.users) if is_view(each) and each is not node]
    if packet is None or overload not in packet.overloads() or views:
        raise Untraceable(f"{name} works in place inside of an operator")
    node.target = getattr(packet, overload)
    for each in list(written.users):
        if each > node:
            each.replace_input_with(written, node)


def _before(node: FxNode) -> FxNode | None:
    """The value that a node hands on unchanged; None if it does more."""
    target = str(node.target)
    if target in _SAME:
        return node.args[0]
    if target == "aten.t.default" and str(node.args[0].target) == target:
        return node.args[0].args[0]
    if target in ("aten.view.default", "aten.expand.default"):
        values = [each.meta["val"] for each in (node, node.args[0])]
        if values[0].shape == values[1].shape:
            return node.args[0]
    return None


# --- the trace parted


def _split(graph: OpGraph, trace: _Trace) -> Joint:
    later = set(trace.tangents)  # what gradients go through
    for node in trace.nodes:
        if any(each in later for each in node.all_input_nodes):
            later.add(node)
    ends = list(trace.gradients.values())
    ours = _reached(ends, later)
    read = (each for node in trace.nodes if node in ours for each in node.all_input_nodes)
    needed = dict.fromkeys(each for each in (*read, *ends) if each not in later)
    names = _savable(graph, trace.values)
    there = operands(node for node in trace.nodes if node not in later)

    def price(node: FxNode) -> float | None:
        return _price(graph, names.get(node), node in there)

    saved = choose_saved(needed, price, operands(ours))
    again = behind(needed, saved)
    held = [each.name for each in graph.placeholders if each.kind != "input"]
    rest = [value.name for value in (*graph.placeholders, *graph.nodes) if value.name not in held]
    order = [*rest, *held]  # a problem's first input has the batch
    kept = sorted((names[node] for node in saved), key=order.index)
    inner = [name for name in kept if graph.node(name) and name not in graph.outputs]
    forward = replace(
        graph,
        outputs=(*graph.outputs, *inner),
        returns_tuple=graph.returns_tuple or bool(inner),
    )
    renamed = {node: names[node] for node in saved}
    renamed |= {
        node: f"gradient_{graph.outputs[place]}"
        for node, place in zip(trace.tangents, trace.recorded, strict=True)
    }
    nodes = _written([node for node in trace.nodes if node in ours | again], renamed, order)
    places: dict[FxNode, int] = {}
    for end in ends:
        if end in trace.tangents:
            places[end] = trace.tangents.index(end) - len(trace.tangents)
        elif end.op != "call_function":
            raise Untraceable("a gradient is what the piece was given")
        else:
            places.setdefault(end, sum(place >= 0 for place in places.values()))
    outputs = tuple(renamed[end] for end, place in places.items() if place >= 0)
    if not outputs:
        raise Untraceable("its backward computes nothing")
    constants = [each for name in kept if (each := graph.placeholder(name)) is not None]
    constants = [each for each in constants if each.kind == "constant"]
    given = tuple(name for name in kept if name not in {each.name for each in constants})
    taken = [Placeholder(name, "input", "", graph.spec(name)) for name in given]
    taken += [
        Placeholder(renamed[node], "input", "", tensor_spec(node.meta["val"]))
        for node in trace.tangents
    ]
    backward = OpGraph(
        (*constants, *taken), nodes, outputs, len(outputs) > 1, graph.training, graph.mode_matters
    )
    gradients = {name: places[end] for name, end in trace.gradients.items()}
    return Joint(forward, backward, given, trace.recorded, gradients, tuple(inner))


def _reached(ends: Iterable[FxNode], later: Collection[FxNode]) -> set[FxNode]:
    """What of the backward gradients are made of, tangents left out."""
    found: set[FxNode] = set()
    todo = [end for end in ends if end in later]
    while todo:
        node = todo.pop()
        if node not in found and node.op != "placeholder":
            found.add(node)
            todo += [each for each in node.all_input_nodes if each in later]
    return found


def _savable(graph: OpGraph, values: Mapping[str, FxNode]) -> dict[FxNode, str]:
    """Names of traced values that may be saved: one that is given or handed on before others."""
    first = [*(each.name for each in graph.placeholders), *graph.outputs]
    found: dict[FxNode, str] = {}
    for name in (*first, *values):
        if name in values and not _is_view(graph, graph.node(name)):
            found.setdefault(values[name], name)
    return found


def _is_view(graph: OpGraph, node: Node | None) -> bool:
    if node is not None and node.target == "getitem":
        node = graph.node(node.refs()[0])
    return node is not None and node.target != "getitem" and may_be_view(node.target)


def _price(graph: OpGraph, name: str | None, is_there: bool) -> float | None:
    """The bytes that are moved for a value to be there in a backward; None if it cannot be.

    Args:
        is_there: whether the forward has it in memory for operators of its own.
    """
    if name is None:
        return None
    is_there = is_there or graph.node(name) is None or name in graph.outputs
    return float(graph.spec(name).bytes * (1 if is_there else WRITTEN_AND_READ))


def _written(
    nodes: Sequence[FxNode], renamed: dict[FxNode, str], taken: Collection[str]
) -> tuple[Node, ...]:
    """Traced nodes as nodes of a graph, whose names are added to those that are known."""
    found = []
    for node in nodes:
        name = node.name if node.name not in taken else f"{node.name}_again"
        known = {each.name: renamed[each] for each in node.all_input_nodes}
        renamed[node] = name
        target = target_name(node.target)
        made = replace(read_call(node, target, known), name=name)
        is_real = isinstance(made.output, TensorSpec) and "complex" not in made.output.dtype
        if target in _SPELT and is_real and not any(arg is True for arg in made.args):
            spelt, count = _SPELT[target]
            made = replace(made, target=spelt, args=made.args[:count])
        found.append(made)
    return tuple(found)
