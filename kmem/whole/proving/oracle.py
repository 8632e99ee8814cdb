"""What a model must compute: its results in float64, and those of its graph as it was captured.

A model that was captured whole is computed by its graph, one that was cut by a copy in float64.
What a forward leaves in buffers, and in its inputs, is held to the same as what it returns. Random
numbers that the graph has drawn are those that the answer in float64 is computed with. In training
the gradients of parameters are results too, and of inputs that record them, of outputs weighed by
fixed numbers that every dtype holds exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kmem.measure.oracle.running.copies import copy_module
from kmem.measure.oracle.running.forward import widen
from kmem.measure.oracle.running.widening import Widening
from kmem.problem.graph import Node, Placeholder
from kmem.problem.tracing.evaluate import evaluate_graph
from kmem.whole.cutting.values import given_values, state_of
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.drawing import drawn_again, is_random, numbers_of
from kmem.whole.graphs.source import Built

#: Tensors by what people call them: "output 0", "buffer norm.running_mean".
Results = dict[str, torch.Tensor]

#: A tensor of a module: where it is held, under which name, itself, and what was in it.
Held = tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]


def keep_state(model: nn.Module) -> list[Held]:
    """What a forward might change, buffers that no state_dict has and tensors in attributes too."""
    return [
        (place, name, value, value.detach().clone())
        for module in model.modules()
        for place in (module._parameters, module._buffers, vars(module))
        for name, value in place.items()
        if isinstance(value, torch.Tensor)
    ]


def put_back(state: Sequence[Held]) -> None:
    """Have a module as it was when its state was kept."""
    with torch.no_grad():
        for place, name, value, before in state:
            place[name] = value
            if not torch.equal(value, before):  # what is expanded cannot be written
                value.copy_(before)


def generators() -> list[torch.Tensor]:
    """The state of torch's generators, on the CPU and on the GPU."""
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state()] if torch.cuda.is_available() else found


def set_generators(states: Sequence[torch.Tensor]) -> None:
    """Draw from here on what was drawn from there on."""
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def have_drawn(before: Sequence[torch.Tensor]) -> bool:
    """Whether random numbers were drawn since then."""
    return not all(map(torch.equal, before, generators()))


# --- what a forward gives


@dataclass(frozen=True, slots=True)
class Given:
    """The inputs of a forward that are tensors, and those of them that recorded gradients before
    it: what is written from parameters records them afterwards.
    """

    tensors: list[torch.Tensor]
    recorded: list[torch.Tensor]


def call(built: Built) -> tuple[Any, Given]:
    """A forward on copies of the inputs, which it may write to, and these."""
    args, kwargs = pytree.tree_map(
        lambda leaf: copied(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        (built.args, dict(built.kwargs)),
    )
    given = given_by((args, kwargs))
    return built.module(*args, **kwargs), given


def given_by(inputs: Any) -> Given:
    """What a forward is about to be given."""
    tensors = _tensors(inputs)
    return Given(tensors, _recorded(tensors))


def copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; what is expanded stays itself, for it cannot be written."""
    if is_expanded(value):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value.detach()).requires_grad_(value.requires_grad)


def is_expanded(value: torch.Tensor) -> bool:
    """Whether several elements are one in memory, as after `expand`."""
    return any(
        step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)
    )


def results_of(built: Built, captured: Captured, outputs: Any, given: Given) -> Results:
    """What a forward returned, and what is in the buffers and inputs after it; gradients if it
    recorded.

    Args:
        given: the inputs, as they are afterwards.
    """
    leaves = _tensors(outputs)
    found = {f"output {number}": each.detach().clone() for number, each in enumerate(leaves)}
    found |= {
        f"buffer {each.target}": state_of(built.module, each).detach().clone()
        for each in _buffers(captured)
    }
    found |= _left_in(given.tensors)
    if not torch.is_grad_enabled():
        return found
    sources = dict(built.module.named_parameters())
    sources |= {f"input {number}": each for number, each in enumerate(given.recorded)}
    return found | _gradients(leaves, sources)


def _left_in(inputs: Sequence[torch.Tensor]) -> Results:
    """What is in inputs after a forward."""
    return {
        f"input {number} afterwards": each.detach().clone() for number, each in enumerate(inputs)
    }


def written_to(results: Results, built: Built) -> set[str]:
    """The names of results that are inputs, and no longer what was given."""
    given = _left_in(_tensors((built.args, dict(built.kwargs))))
    return {name for name in given if name in results and not _is(results[name], given[name])}


def is_input(name: str) -> bool:
    """Whether a result is what was left in an input."""
    return name.endswith(" afterwards")


def _is(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same, NaN counting as itself."""
    return torch.equal(one, other) or (
        one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    )


def training_step(built: Built) -> Callable[[], object]:
    """A call that goes forward and backward; nothing but the model computes in it."""
    parameters = [each for each in built.module.parameters() if each.requires_grad]
    first = _recorded(_tensors(built.module(*built.args, **built.kwargs)))
    weights = [_weights(number, each) for number, each in enumerate(first)]

    def step() -> object:
        outputs = _recorded(_tensors(built.module(*built.args, **built.kwargs)))
        return torch.autograd.grad(outputs, parameters, weights, allow_unused=True)

    return step


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _recorded(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each for each in outputs if each.requires_grad]


def _gradients(outputs: Sequence[torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> Results:
    recorded = _recorded(outputs)
    wanted = {name: each for name, each in parameters.items() if each.requires_grad}
    if not recorded or not wanted:
        return {}
    weights = [_weights(number, each) for number, each in enumerate(recorded)]
    found = torch.autograd.grad(recorded, list(wanted.values()), weights, allow_unused=True)
    return {
        f"gradient of {name}": each.detach()
        for name, each in zip(wanted, found, strict=True)
        if each is not None
    }


def _weights(number: int, output: torch.Tensor) -> torch.Tensor:
    """Eighths from -1 to 1, the same for every dtype and device."""
    generator = torch.Generator().manual_seed(number)
    return (torch.randint(-8, 9, output.shape, generator=generator) / 8).to(output)


def _buffers(captured: Captured) -> list[Placeholder]:
    held = (each for segment in captured.segments for each in segment.graph.placeholders)
    return [each for each in held if each.kind == "buffer"]


# --- what it must give


def traced_results(built: Built, captured: Captured) -> tuple[Results, dict[str, object]]:
    """What the graph of a model computes in the model's own dtypes, and what its nodes drew."""
    numbers: dict[str, object] = {}

    def step(node: Node, values: Mapping[str, object], evaluate: Callable[[], object]) -> object:
        made = evaluate()
        if is_random(node):
            numbers[node.name] = numbers_of(node, values, made)
        return made

    def own(value: object) -> object:
        return value.clone() if isinstance(value, torch.Tensor) else value

    return _evaluated(built, captured, own, step=step), numbers


def right_results(built: Built, captured: Captured, numbers: Mapping[str, object]) -> Results:
    """The results in float64.

    Args:
        numbers: what nodes of the graph have drawn.
    """
    if captured.segments[0].path:
        found = _in_float64(built, captured)
    else:

        def step(
            node: Node, values: Mapping[str, object], evaluate: Callable[[], object]
        ) -> object:
            if node.name in numbers:
                return drawn_again(node, values, numbers[node.name])
            return evaluate()

        found = _evaluated(built, captured, _wide, floating=torch.float64, step=step)
    return {name: widen(each) for name, each in found.items()}


def _evaluated(
    built: Built, captured: Captured, own: Callable[[object], object], **how: Any
) -> Results:
    segment = captured.segments[0]
    names = {id(each): name for name, each in built.module.named_parameters()}
    leaves: dict[str, torch.Tensor] = {}
    given: dict[str, Any] = {}
    inputs = 0  # that record gradients
    asked = {each.name for each in segment.graph.placeholders if each.kind == "input"}
    tensors: list[str] = []  # inputs that are
    for name, value in given_values(segment.graph, built).items():
        if name in asked and isinstance(value, torch.Tensor):
            tensors.append(name)
        known = names.get(id(value))  # what is tied is one parameter
        if known is None and isinstance(value, torch.Tensor) and value.requires_grad:
            known = f"input {inputs}"
            inputs += 1
        if known is None:
            given[name] = own(value)
            continue
        if known not in leaves:
            copied_value: Any = own(value)
            leaves[known] = copied_value.detach().requires_grad_(value.requires_grad)
        given[name] = leaves[known]
    found = evaluate_graph(segment.graph, given, **how)
    outputs = [
        found[leaf]
        for leaf in segment.leaves
        if not isinstance(leaf, tuple) and isinstance(found[leaf], torch.Tensor)
    ]
    results: dict[str, Any] = {f"output {number}": each for number, each in enumerate(outputs)}
    results |= {f"buffer {each.target}": given[each.name] for each in _buffers(captured)}
    results |= _left_in([given[name] for name in tensors])
    if torch.is_grad_enabled():
        results |= _gradients(outputs, leaves)
    return {name: each.detach() for name, each in results.items()}


def _wide(value: object) -> object:
    return widen(value.clone()) if isinstance(value, torch.Tensor) else value


def _wide_leaf(value: object) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    return widen(value.detach().clone()).requires_grad_(value.requires_grad)


def _in_float64(built: Built, captured: Captured) -> Results:
    """The results of a copy of the model, whose own casts and constants are float64 too."""
    args, kwargs = pytree.tree_map(_wide_leaf, (built.args, dict(built.kwargs)))
    module = copy_module(built.module)
    module._apply(widen)
    for each in module.modules():  # tensors that no state_dict has
        for name, value in vars(each).items():
            vars(each)[name] = widen(value) if isinstance(value, torch.Tensor) else value
    wide = Built(module, args, kwargs)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Widening():
            given = given_by((args, kwargs))
            return results_of(wide, captured, wide.module(*args, **kwargs), given)
    finally:
        torch.set_default_dtype(default)
