"""A composed model's results held to what its model must compute.

It errs at most twice as much as eager does against float64, in what a forward returns and in what
it leaves in buffers, and in inputs that either of them writes to.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from kmem.host.deadline import DeadlinePassed, deadline
from kmem.measure.oracle.correctness import error_floor, is_within, measure_error
from kmem.problem.operators.row import Convolution
from kmem.problem.operators.table import find_operator
from kmem.records import Precision
from kmem.whole.composing.binding import SegmentForward, installed, why_not_compiled
from kmem.whole.composing.compose import EAGER_REST
from kmem.whole.graphs.capture import Captured
from kmem.whole.graphs.source import Built
from kmem.whole.proving.clock import LATE
from kmem.whole.proving.oracle import (
    Results,
    call,
    generators,
    have_drawn,
    is_input,
    keep_state,
    put_back,
    results_of,
    right_results,
    set_generators,
    traced_results,
    written_to,
)

_WHY_NOT_TRACED = "what Python keeps or draws is fixed in it; keep it in buffers"

#: The largest error, eager's own, and why the whole is refused; empty if it is right.
Found = tuple[float, float, str]


def compare(
    built: Built,
    captured: Captured,
    ways: Mapping[str, Sequence[SegmentForward]],
    precision: Precision,
    compile_s: float,
) -> dict[str, Found]:
    """What was found of each way to run the rest of a composed model.

    What a forward leaves in buffers and inputs is held to the same as what it returns.
    """
    state = keep_state(built.module)
    drawn = generators()
    is_whole = not captured.segments[0].path
    traced, numbers = traced_results(built, captured) if is_whole else (None, {})
    set_generators(drawn)
    oracle = right_results(built, captured, numbers)
    set_generators(drawn)
    eager = results_of(built, captured, *call(built))
    if have_drawn(drawn) and not numbers:
        reason = "its forward draws random numbers, against which nothing can be held"
        return {EAGER_REST: (0.0, 0.0, reason)}
    written = written_to(eager, built)
    answers = _Answers(oracle, eager, traced, _has_cudnn_work(captured))
    found: dict[str, Found] = {}
    for rest, forwards in ways.items():
        put_back(state)
        set_generators(drawn)
        served = [each.served for each in forwards]
        try:
            limit = nullcontext() if rest == EAGER_REST else deadline(max(1.0, compile_s))
            with limit, installed(forwards):
                ours = results_of(built, captured, *call(built))
        except DeadlinePassed:
            found[rest] = 0.0, 0.0, LATE
            continue
        reason = "; ".join(
            each.reason
            for each, before in zip(forwards, served, strict=True)
            if each.served == before
        )
        if reason:
            reason = f"the composed forward did not run: {reason}"
        reason = reason or why_not_compiled(forwards)
        held = written | written_to(ours, built)
        ours = {name: each for name, each in ours.items() if name in held or not is_input(name)}
        found[rest] = (0.0, 0.0, reason) if reason else _hold(ours, answers, precision)
    put_back(state)
    return found


@dataclass(frozen=True, slots=True)
class _Answers:
    """What a forward must give, and what the model and its traced graph give."""

    oracle: Results
    eager: Results
    traced: Results | None
    has_cudnn_work: bool


def _hold(ours: Results, answers: _Answers, precision: Precision) -> Found:
    """Hold what a composed forward gave to what it must."""
    oracle, eager = answers.oracle, answers.eager
    traced = answers.traced
    if _count(ours) != _count(eager):
        return 0.0, 0.0, "it returns another number of tensors"
    error = eager_error = 0.0
    cudnn_works = precision is Precision.MATCH and answers.has_cudnn_work
    for name, found in ours.items():
        right, known = oracle[name], eager[name]
        if found.shape != known.shape or found.dtype != known.dtype:
            return error, eager_error, f"{name} has another shape or dtype"
        stands_in = cudnn_works and found.device.type == "cpu"
        floor = error_floor(found.dtype, Precision.TF32 if stands_in else precision)
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


def _count(results: Results) -> int:
    """How many there are beside inputs."""
    return sum(not is_input(name) for name in results)


def _has_cudnn_work(captured: Captured) -> bool:
    """Whether PyTorch's defaults let a GPU have something in TF32, as the judge of pieces knows."""
    found = (
        find_operator(node.target) for segment in captured.segments for node in segment.graph.nodes
    )
    return any(
        operator is not None
        and (isinstance(operator.lowering, Convolution) or operator.name == "recurrent")
        for operator in found
    )
