"""How the values of a model are spread: of parameters, inputs, and what is handed on inside.

With a model that is small enough the figures come from one real forward on the CPU; else from what
is usual for such values, which is then said.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from kmem.problem.costs.work import node_work
from kmem.problem.graph import OpGraph, Placeholder
from kmem.problem.tracing.evaluate import evaluate_node
from kmem.records import Precision, TensorSpec
from kmem.whole.graphs.capture import Captured, build_real
from kmem.whole.graphs.source import Built, ModelSource

#: Most elements of parameters, and multiply-adds of a forward, for which values are looked at.
MOST_PARAMETERS = 3 * 10**8
MOST_MULTIPLY_ADDS = 10**11


@dataclass(frozen=True, slots=True)
class Spread:
    """How the elements of a tensor are spread.

    `pattern` is "binary" where all are 0 or 1, and "tril" for ones on and below the diagonal.
    """

    mean: float
    deviation: float
    low: float
    high: float
    pattern: str = ""


def usual_spread(name: str, spec: TensorSpec) -> Spread:
    """What is usual for a value of a name, where nothing was seen of it."""
    if name.endswith("running_var"):
        return Spread(1.0, 0.3, 0.5, 1.5)
    if name.endswith("running_mean") or "bias" in name.rpartition(".")[2]:
        return Spread(0.0, 0.1, -0.3, 0.3)
    if name and len(spec.shape) == 1:  # the weight of a norm
        return Spread(1.0, 0.1, 0.7, 1.3)
    deviation = 1.0
    if name:
        deviation = 1 / math.sqrt(max(1, math.prod(spec.shape[1:])))
    return Spread(0.0, deviation, -3 * deviation, 3 * deviation)


def look_at_values(
    source: ModelSource, captured: Captured, wanted: Collection[str], precision: Precision
) -> dict[str, Spread]:
    """The spread of parameters by their name, and of values inside by theirs.

    Nothing for a model that was cut at module borders, or is too large; parameters and inputs
    alone for one whose forward would take long here.

    Args:
        wanted: names of values in the graph.
    """
    if captured.segments[0].path or captured.parameters > MOST_PARAMETERS:
        return {}
    graph = captured.segments[0].graph
    with torch.no_grad():
        built = build_real(source, precision)
        return spreads(graph, given_values(graph, built), wanted if _is_quick(captured) else ())


def _is_quick(captured: Captured) -> bool:
    """Whether a forward on the CPU ends in seconds."""
    work = sum(
        found.product_fma + found.conv_fma
        for segment in captured.segments
        for node in segment.graph.nodes
        for found in (node_work(segment.graph, node),)
    )
    return work <= MOST_MULTIPLY_ADDS


def given_values(graph: OpGraph, built: Built) -> dict[str, object]:
    """What the placeholders of a whole model's graph are in a model that is built."""
    leaves = iter(pytree.tree_leaves((built.args, dict(built.kwargs))))
    return {
        each.name: next(leaves) if each.kind == "input" else state_of(built.module, each)
        for each in graph.placeholders
        if each.kind != "constant"
    }


def state_of(module: torch.nn.Module, placeholder: Placeholder) -> torch.Tensor:
    """A parameter, buffer or tensor in an attribute by its path."""
    path = placeholder.target
    return getattr(module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])


def spreads(
    graph: OpGraph, given: Mapping[str, object], wanted: Collection[str]
) -> dict[str, Spread]:
    """The spread of what a graph starts from, by state_dict name or its own, and of values."""
    found = {}
    for each in graph.placeholders:
        value = given.get(each.name)
        if isinstance(value, torch.Tensor):
            found[each.target or each.name] = _spread(value)
    if not wanted:
        return found
    last = {name: place for place, node in enumerate(graph.nodes) for name in node.refs()}
    values = dict(given)
    device = next(value.device for value in values.values() if isinstance(value, torch.Tensor))
    for each in graph.placeholders:
        if each.kind == "constant":
            dtype = getattr(torch, each.spec.dtype)
            made = torch.tensor(each.value, dtype=dtype, device=device)
            values[each.name] = made.expand(each.spec.shape)
    for place, node in enumerate(graph.nodes):
        values[node.name] = evaluate_node(node, values, device=device)
        if node.name in wanted and isinstance(values[node.name], torch.Tensor):
            found[node.name] = _spread(values[node.name])
        for name in set(node.refs()):
            if last[name] == place:
                values.pop(name)
    return found


def _spread(value: torch.Tensor) -> Spread:
    if not value.numel() or value.is_complex():
        return Spread(0.0, 1.0, 0.0, 1.0)
    numbers = value.detach().float()
    finite = (
        numbers[torch.isfinite(numbers)] if not bool(torch.isfinite(numbers).all()) else numbers
    )
    if not finite.numel():
        return Spread(0.0, 1.0, 0.0, 1.0)
    deviation = float(finite.std(unbiased=False))
    low, high = float(finite.min()), float(finite.max())
    return Spread(float(finite.mean()), deviation, low, high, _pattern(numbers, low, high))


def _pattern(numbers: torch.Tensor, low: float, high: float) -> str:
    if (low, high) != (0.0, 1.0) or not bool(((numbers == 0) | (numbers == 1)).all()):
        return ""
    is_masked = numbers.dim() >= 2 and bool((numbers == torch.ones_like(numbers).tril()).all())
    return "tril" if is_masked else "binary"
