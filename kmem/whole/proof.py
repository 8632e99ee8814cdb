"""A composed model held to its model: right by the accuracy contract, and faster as a whole.

It runs in a process of its own (`python -m kmem.whole.proof`), for a kernel may crash, and the
interpreter must be chosen before Triton is imported. The judge has proved each kernel alone; here
the model as a whole errs at most twice as much as eager does against float64, on inputs drawn anew.

- On a GPU the kernels run as they will, and are timed in pairs with the model, with and without
  each piece, the L2 cache flushed in between.
- Without one they run in Triton's interpreter where the model is small enough; else each piece runs
  the operators that its kernel replaces, which proves all that is around the kernels.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kmem.errors import ExecutorError
from kmem.measure.oracle.correctness import error_floor, is_within, measure_error
from kmem.problem.evaluate import evaluate_graph
from kmem.problem.graph import Placeholder
from kmem.records import Precision
from kmem.whole.binding import Composed, bind, read_composed
from kmem.whole.capture import Captured, build_real, capture
from kmem.whole.clock import time_whole
from kmem.whole.process import answer, ask
from kmem.whole.source import Built, read_source
from kmem.whole.values import given_values, state_of

_MODULE = "kmem.whole.proof"
#: Draws of inputs that the whole is compared on.
_DRAWS = 3
#: Elements made by all nodes of a forward up to which the interpreter ends in about a minute.
MOST_INTERPRETED = 200_000
_TIMEOUT_S = 900.0
_WHY_NOT_TRACED = "what Python keeps or draws is fixed in it; keep it in buffers"


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be proved: a composed directory of a model that is named as in source.py."""

    model: str
    inputs: tuple[str, ...]
    mode: str | None
    precision: str
    directory: str
    seed: int
    time: bool  # needs a GPU
    compile: bool = False  # also torch.compile and CUDA graphs


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found. `how` says what ran; times are medians in milliseconds, pairs as ratios.

    `baselines_ms` are other ways to run the model; composed_graph among them is the composed model
    as one CUDA graph. `without` has for each piece the time with it over the time without it: above
    1 the whole is faster without.
    """

    passed: bool
    how: str
    reason: str = ""
    error: float = 0.0  # the largest over the outputs and draws
    eager_error: float = 0.0
    eager_ms: float | None = None
    composed_ms: float | None = None
    baselines_ms: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    ratio: float | None = None  # eager over composed, the median over pairs
    ratio_low: float | None = None
    without: Mapping[str, float] = field(default_factory=dict)


def prove(question: Question, *, gpu: bool) -> Proof:
    """Ask in a process of its own; a crash or a timeout is a proof that failed."""
    try:
        return Proof(**ask(_MODULE, asdict(question), gpu=gpu, timeout_s=_TIMEOUT_S))
    except ExecutorError as ex:
        return Proof(False, "", str(ex))


# --- in the process


def find_proof(question: Question) -> Proof:
    """Compare, and where that is asked time."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = Precision(question.precision)
    if precision is Precision.TF32:
        torch.backends.cuda.matmul.allow_tf32 = True
    source = read_source(question.model, question.inputs, mode=question.mode)
    captured = capture(source, precision)
    composed = read_composed(Path(question.directory))
    if composed is None:
        return Proof(False, "", f"{question.directory} holds no composed model")
    torch.manual_seed(question.seed)
    with torch.no_grad():
        built = build_real(source, precision, device)
        kind, how = _how(captured, device)
        error = eager_error = 0.0
        for draw in range(_DRAWS):
            torch.manual_seed(question.seed + draw + 1)
            case = built if draw == 0 else _redrawn(built)
            found = _compare(case, captured, composed, kind, precision)
            error, eager_error = max(error, found[0]), max(eager_error, found[1])
            if found[2]:
                return Proof(False, how, found[2], error, eager_error)
        times: dict[str, Any] = {}
        if question.time and device == "cuda":
            times = time_whole(built, composed, compiled=question.compile)
    return Proof(True, how, "", error, eager_error, **times)


def _how(captured: Captured, device: str) -> tuple[str, str]:
    if device == "cuda":
        return "ModelNew", "kernels on the GPU"
    made = sum(
        node.output.numel
        for segment in captured.segments
        for node in segment.graph.nodes
        if hasattr(node.output, "numel")
    )
    if made <= MOST_INTERPRETED:
        return "ModelNew", "kernels in the interpreter"
    return "Model", "each piece by the operators that its kernel replaces"


def _redrawn(built: Built) -> Built:
    """Floating inputs drawn again with the spread that they have."""

    def draw(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        if _is_expanded(leaf):
            return leaf
        values = leaf.float()
        spread = values.std(unbiased=False) if values.numel() > 1 else torch.tensor(1.0)
        new = torch.randn(leaf.shape, device=leaf.device) * spread + values.mean()
        if bool((values >= 0).all()):
            new = new.abs()
        return _copied(leaf).copy_(new)

    args, kwargs = pytree.tree_map(draw, (built.args, dict(built.kwargs)))
    return Built(built.module, args, kwargs)


def _compare(
    built: Built, captured: Captured, composed: Composed, kind: str, precision: Precision
) -> tuple[float, float, str]:
    """The largest error, eager's own, and why the whole is refused; empty if it is right.

    What a forward leaves in buffers is held to the same as what it returns.
    """
    state = _keep_state(built.module)
    drawn = _generators()
    traced = None if captured.segments[0].path else _traced(built, captured)
    _set_generators(drawn)
    oracle = _oracle(built, captured)
    _set_generators(drawn)
    eager = _results(built, captured, _call(built))
    if _are_drawn(drawn):
        return 0.0, 0.0, "its forward draws random numbers, against which nothing can be held"
    _restore(state)
    with bind(built.module, composed, kernel_class=kind) as handle:
        ours = _results(built, captured, _call(built))
        reason = "; ".join(each.reason for each in handle.forwards if not each.served)
    _restore(state)
    if len(ours) != len(eager):
        return 0.0, 0.0, "it returns another number of tensors"
    if reason:
        return 0.0, 0.0, f"the composed forward did not run: {reason}"
    error = eager_error = 0.0
    for name, found in ours.items():
        right, known = oracle[name], eager[name]
        if found.shape != known.shape or found.dtype != known.dtype:
            return error, eager_error, f"{name} has another shape or dtype"
        floor = error_floor(found.dtype, precision)
        difference = measure_error(found, right, known)
        reference = measure_error(known, right, known)
        # the oracle is the graph's, and would not know that the graph is not the model
        if traced is not None and not is_within(
            reference, measure_error(traced[name], right, traced[name]), floor
        ):
            return 0.0, 0.0, f"{name} of the traced graph is not the model's: {_WHY_NOT_TRACED}"
        error = max(error, difference.relative_error)
        eager_error = max(eager_error, reference.relative_error)
        if not is_within(difference, reference, floor):
            text = difference.fault or f"errs {difference.relative_error:.2g}"
            allowed = f"eager errs {reference.relative_error:.2g} against float64"
            return error, eager_error, f"{name}: {text}, {allowed}"
    return error, eager_error, ""


#: A tensor of a module: where it is held, under which name, itself, and what was in it.
_Held = tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]


def _keep_state(model: nn.Module) -> list[_Held]:
    """What a forward might change, buffers that no state_dict has and tensors in attributes too."""
    return [
        (place, name, value, value.clone())
        for module in model.modules()
        for place in (module._parameters, module._buffers, vars(module))
        for name, value in place.items()
        if isinstance(value, torch.Tensor)
    ]


def _restore(state: Sequence[_Held]) -> None:
    for place, name, value, before in state:
        place[name] = value
        if not torch.equal(value, before):  # what is expanded cannot be written
            value.copy_(before)


def _generators() -> list[torch.Tensor]:
    found = [torch.get_rng_state()]
    return [*found, torch.cuda.get_rng_state()] if torch.cuda.is_available() else found


def _set_generators(states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def _are_drawn(before: Sequence[torch.Tensor]) -> bool:
    return not all(map(torch.equal, before, _generators()))


def _call(built: Built) -> Any:
    args, kwargs = pytree.tree_map(
        lambda leaf: _copied(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        (built.args, dict(built.kwargs)),
    )
    return built.module(*args, **kwargs)


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides; what is expanded stays itself, for it cannot be written."""
    if _is_expanded(value):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    ).copy_(value)


def _is_expanded(value: torch.Tensor) -> bool:
    return any(
        step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True)
    )


def _tensors(outputs: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(outputs)
    return [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _results(built: Built, captured: Captured, outputs: Any) -> dict[str, torch.Tensor]:
    """What a forward returned, and what is in the buffers after it, by what people call it."""
    found = {f"output {number}": each for number, each in enumerate(_tensors(outputs))}
    return found | {
        f"buffer {each.target}": state_of(built.module, each).detach().clone()
        for each in _buffers(captured)
    }


def _buffers(captured: Captured) -> list[Placeholder]:
    held = (each for segment in captured.segments for each in segment.graph.placeholders)
    return [each for each in held if each.kind == "buffer"]


def _oracle(built: Built, captured: Captured) -> dict[str, torch.Tensor]:
    """The results in float64: of the graph, or of a copy of a model that was cut."""
    if captured.segments[0].path:
        copied = _in_float64(built)
        found = _results(copied, captured, _call(copied))
        return {name: _widened(each) for name, each in found.items()}
    return _evaluated(built, captured, torch.float64)


def _traced(built: Built, captured: Captured) -> dict[str, torch.Tensor]:
    """What the graph of a model computes in the dtypes of the model."""
    return _evaluated(built, captured, None)


def _evaluated(
    built: Built, captured: Captured, floating: torch.dtype | None
) -> dict[str, torch.Tensor]:
    segment = captured.segments[0]

    def own(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        return value.clone() if floating is None else _widened(value.clone())

    given = {name: own(value) for name, value in given_values(segment.graph, built).items()}
    found = evaluate_graph(segment.graph, given, floating=floating)
    outputs = [
        found[leaf]
        for leaf in segment.leaves
        if not isinstance(leaf, tuple) and isinstance(found[leaf], torch.Tensor)
    ]
    results: dict[str, Any] = {f"output {number}": each for number, each in enumerate(outputs)}
    results |= {f"buffer {each.target}": given[each.name] for each in _buffers(captured)}
    if floating is None:
        return results
    return {name: _widened(each) for name, each in results.items()}


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _in_float64(built: Built) -> Built:
    args, kwargs = pytree.tree_map(
        lambda leaf: _widened(leaf) if isinstance(leaf, torch.Tensor) else leaf,
        (built.args, dict(built.kwargs)),
    )
    return Built(copy.deepcopy(built.module).double(), args, kwargs)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    return asdict(find_proof(Question(**{**asked, "inputs": tuple(asked["inputs"])})))


if __name__ == "__main__":
    answer(_answer)
