"""What a graph computes: its nodes run one after another by torch, on real tensors or fake ones.

Covered: every operator of torch and of loaded libraries; in-place nodes change the values that they
are given. Not covered: opaque graphs, which have no nodes.
"""

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import torch

from kmem.problem.graph import DEVICE, Arg, Literal, Node, OpGraph, Placeholder, Ref

_FLOATING = ("float32", "float16", "bfloat16", "float64")


def evaluate_graph(
    graph: OpGraph,
    given: Mapping[str, object],
    *,
    floating: torch.dtype | None = None,
    step: Callable[[Node, Mapping[str, object], Callable[[], object]], object] | None = None,
) -> tuple[object, ...]:
    """The outputs of a graph, in order.

    Args:
        given: the values of its placeholders by name; constants may be left out.
        floating: the dtype in place of every floating one that the graph names, so that a graph
            traced in float32 can be computed in float64.
        step: given each node, the values so far, and a call that evaluates it; returns its value.
    """
    values = dict(given)
    device = next(value.device for value in values.values() if isinstance(value, torch.Tensor))
    for placeholder in graph.placeholders:
        if placeholder.name not in values:
            values[placeholder.name] = _constant(placeholder, device, floating)
    last = {name: place for place, node in enumerate(graph.nodes) for name in node.refs()}
    for place, node in enumerate(graph.nodes):
        evaluate = partial(evaluate_node, node, values, device=device, floating=floating)
        values[node.name] = evaluate() if step is None else step(node, values, evaluate)
        for name in set(node.refs()) - set(graph.outputs):
            if last[name] == place:
                del values[name]
    return tuple(values[name] for name in graph.outputs)


def evaluate_node(
    node: Node,
    values: Mapping[str, object],
    *,
    device: torch.device,
    floating: torch.dtype | None = None,
) -> object:
    """What a node makes of these values.

    Args:
        values: by name; at least those that the node reads.
        device: of the forward's first input.
        floating: see `evaluate_graph`.
    """

    arguments, named = arguments_of(node, values, device=device, floating=floating)
    if node.target == "getitem":
        return arguments[0][arguments[1]]
    return _operator(node.target)(*arguments, **named)


def arguments_of(
    node: Node,
    values: Mapping[str, object],
    *,
    device: torch.device,
    floating: torch.dtype | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """What a node is called with, by place and by name; see `evaluate_node`."""

    def value_of(arg: Arg) -> object:
        if isinstance(arg, Ref):
            return values[arg.name]
        if isinstance(arg, tuple):
            return [value_of(item) for item in arg]
        if arg == DEVICE:
            return device
        if isinstance(arg, Literal):
            return _literal(arg, floating)
        return arg

    named = {key: value_of(arg) for key, arg in node.kwargs.items()}
    return [value_of(arg) for arg in node.args], named


def _operator(target: str) -> object:
    return reduce(getattr, target.split("."), torch.ops)


def _literal(literal: Literal, floating: torch.dtype | None) -> object:
    name = literal.expression.removeprefix("torch.")
    if floating is not None and name in _FLOATING:
        return floating
    return getattr(torch, name)


def _constant(
    placeholder: Placeholder, device: torch.device, floating: torch.dtype | None
) -> torch.Tensor:
    dtype = getattr(torch, placeholder.spec.dtype)
    if floating is not None and dtype.is_floating_point:
        dtype = floating
    return torch.tensor(placeholder.value, dtype=dtype, device=device).expand(
        placeholder.spec.shape
    )
