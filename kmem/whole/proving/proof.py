"""A composed model held to its model: right by the accuracy contract, and faster as a whole.

It runs in a process of its own (`python -m kmem.whole.proving.proof`), for a kernel may crash, and
the interpreter must be chosen before Triton is imported. The judge has proved each kernel alone;
here the model as a whole errs at most twice as much as eager does against float64, on inputs drawn
anew.

- On a GPU the kernels run as they will, and are timed in pairs with the model and the best other
  ways to run it, and with and without pieces.
- Without one they run in Triton's interpreter where the model is small enough; else each piece runs
  the operators that its kernel replaces, which proves all that is around the kernels.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kmem.errors import ExecutorError
from kmem.host.deadline import DeadlinePassed, deadline
from kmem.measure.oracle.correctness import error_floor, is_within, measure_error
from kmem.problem.operators.row import Convolution
from kmem.problem.operators.table import find_operator
from kmem.records import Precision
from kmem.whole.composing.binding import (
    SegmentForward,
    forwards_of,
    installed,
    read_composed,
    why_not_compiled,
)
from kmem.whole.composing.compose import EAGER_REST
from kmem.whole.graphs.capture import Captured, build_real, capture
from kmem.whole.graphs.drawing import undrawable
from kmem.whole.graphs.source import Built, read_source
from kmem.whole.process import answer, ask, interpret_as_the_judge
from kmem.whole.proving.clock import (
    COMPOSED,
    EAGER,
    GRAPH,
    LATE,
    LONGEST_COMPILE_S,
    TOGETHER,
    Wanted,
    is_graph,
    time_whole,
)
from kmem.whole.proving.oracle import (
    Results,
    call,
    copied,
    generators,
    have_drawn,
    is_expanded,
    keep_state,
    put_back,
    results_of,
    right_results,
    set_generators,
    traced_results,
)

_MODULE = "kmem.whole.proving.proof"
#: Elements made by all nodes of a forward up to which the interpreter ends in about a minute.
MOST_INTERPRETED = 200_000
LONGEST_PROOF_S = 900.0
#: Fields of a question that JSON makes lists of.
_LISTS = ("inputs", "baselines", "against", "without", "rests")
_WHY_NOT_TRACED = "what Python keeps or draws is fixed in it; keep it in buffers"


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be proved: a composed directory of a model, named as in graphs/source.py."""

    model: str
    inputs: tuple[str, ...]
    mode: str | None
    precision: str
    directory: str
    seed: int
    time: bool  # needs a GPU
    baselines: tuple[str, ...] = ()  # compiled forms of the model that are timed, too
    against: tuple[str, ...] = ()  # ways that the composed model is timed in pairs with
    without: tuple[str, ...] = ()  # pieces that it is timed with and without, see `together`
    draws: int = 3  # of inputs that the whole is compared on
    backward: bool = False  # gradients of parameters too
    compile_s: float = LONGEST_COMPILE_S  # for compiled forms, then they are left out
    rests: tuple[str, ...] = (EAGER_REST,)  # how the composed model's other operators may run


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found. `how` says what ran; times are medians in milliseconds, pairs as ratios.

    `baselines_ms` are other ways to run the model, and the composed model with its rest run in the
    way that is slower; names in _graph are ways launched as one CUDA
    graph, composed_graph among them. `gains` has for ways their time over that of the composed
    model launched alike: the median and the lower end of its 95% interval. `without` has for pieces
    the time with them over that without, called and as graphs: the median and its upper end.
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
    missing: Mapping[str, str] = field(default_factory=dict)  # baselines, and why
    gains: Mapping[str, Sequence[float]] = field(default_factory=dict)
    ratio: float | None = None  # eager over composed, the median over pairs
    ratio_low: float | None = None
    without: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    rest: str = EAGER_REST  # of the composed model: the faster way of those that are right

    @property
    def best(self) -> tuple[str, ...]:
        """The fastest other way to run the model, as it is called and as one CUDA graph."""
        times = self._others
        ways = ([name for name in times if is_graph(name) is graph] for graph in (False, True))
        return tuple(min(names, key=times.__getitem__) for names in ways if names)

    @property
    def _others(self) -> dict[str, float]:
        """Times of the other ways to run the model, eager among them."""
        times = {**self.baselines_ms, **({} if self.eager_ms is None else {EAGER: self.eager_ms})}
        return {name: ms for name, ms in times.items() if not name.startswith(COMPOSED)}

    def gain(self, *, graph: bool) -> tuple[str, float, float] | None:
        """The other way that it gains least on, launched alike, the gain, and its lower end.

        One that was timed at another time counts by the two times, without an interval.
        """
        times, ours_ms = self._others, self.composed_ms
        if graph:
            ours_ms = self.baselines_ms.get(COMPOSED + GRAPH)
        apart = {name: (ms / ours_ms,) * 2 for name, ms in times.items()} if ours_ms else {}
        alike = [
            (name, median, low)
            for name, (median, low) in {**apart, **self.gains}.items()
            if is_graph(name) is graph
        ]
        return min(alike, key=lambda entry: entry[1], default=None)

    @property
    def is_faster(self) -> bool:
        """Whether it beats every other way that is launched alike, in one way of calling at least.

        Without times, an estimate says so.
        """
        found = [self.gain(graph=graph) for graph in (False, True)]
        return not self.gains or any(each is not None and each[2] > 1 for each in found)


def together(*names: str) -> str:
    """What a question calls pieces that it is timed with and without all at once."""
    return TOGETHER.join(sorted(names))


def read_proof(text: str) -> Proof | None:
    """What a run's state keeps of a proof; None where it keeps none."""
    return Proof(**json.loads(text)) if text else None


def prove(
    question: Question,
    *,
    gpu: bool,
    timeout_s: float = LONGEST_PROOF_S,
    on_begun: Callable[[Popen[str]], None] | None = None,
) -> Proof:
    """Ask in a process of its own; a crash or a timeout is a proof that failed.

    Args:
        on_begun: given the process, which another thread may end.
    """
    asked = asdict(question)
    try:
        return Proof(**ask(_MODULE, asked, gpu=gpu, timeout_s=timeout_s, on_begun=on_begun))
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
    if found := undrawable(segment.graph for segment in captured.segments):
        return Proof(False, "", f"its forward draws random numbers ({found}) that depend on values")
    composed = read_composed(Path(question.directory))
    if composed is None:
        return Proof(False, "", f"{question.directory} holds no composed model")
    torch.manual_seed(question.seed)
    with torch.set_grad_enabled(question.backward):
        built = build_real(source, precision, device)
        kind, how = _how(captured, device)
        ways = {
            rest: forwards_of(built.module, composed.with_rest(rest), kernel_class=kind)
            for rest in question.rests
        }
        error = eager_error = 0.0
        missing: dict[str, str] = {}
        compile_s = question.compile_s
        for draw in range(question.draws):
            torch.manual_seed(question.seed + draw + 1)
            case = built if draw == 0 else _redrawn(built)
            started = time.monotonic()
            found = _compare(case, captured, ways, precision, compile_s)
            if draw == 0 and len(ways) > 1:
                compile_s -= time.monotonic() - started
            for rest, (mine, known, reason) in found.items():
                eager_error = max(eager_error, known)
                if reason and (rest == EAGER_REST or len(ways) == 1):
                    return Proof(False, how, reason, max(error, mine), eager_error)
                if reason:
                    missing[f"{COMPOSED}_{rest}"] = reason
                    del ways[rest]
                else:
                    error = max(error, mine)
        times: dict[str, Any] = {}
        if question.time and device == "cuda":
            wanted = Wanted(
                question.baselines,
                question.against,
                question.without,
                question.backward,
                compile_s,
                tuple(ways),
            )
            times = time_whole(built, composed, wanted, known=ways)
    times["missing"] = {**missing, **times.get("missing", {})}
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
        if is_expanded(leaf):
            return leaf
        values = leaf.detach().float()
        spread = values.std(unbiased=False) if values.numel() > 1 else torch.tensor(1.0)
        new = torch.randn(leaf.shape, device=leaf.device) * spread + values.mean()
        if bool((values >= 0).all()):
            new = new.abs()
        with torch.no_grad():
            return copied(leaf).copy_(new)

    args, kwargs = pytree.tree_map(draw, (built.args, dict(built.kwargs)))
    return Built(built.module, args, kwargs)


#: The largest error, eager's own, and why the whole is refused; empty if it is right.
_Found = tuple[float, float, str]


def _compare(
    built: Built,
    captured: Captured,
    ways: Mapping[str, Sequence[SegmentForward]],
    precision: Precision,
    compile_s: float,
) -> dict[str, _Found]:
    """What was found of each way to run the rest of a composed model.

    What a forward leaves in buffers is held to the same as what it returns.
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
    answers = _Answers(oracle, eager, traced, _has_cudnn_work(captured))
    found: dict[str, _Found] = {}
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


def _hold(ours: Results, answers: _Answers, precision: Precision) -> _Found:
    """Hold what a composed forward gave to what it must."""
    oracle, eager = answers.oracle, answers.eager
    traced = answers.traced
    if len(ours) != len(eager):
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


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    interpret_as_the_judge()
    lists = {name: tuple(asked[name]) for name in _LISTS}
    return asdict(find_proof(Question(**{**asked, **lists})))


if __name__ == "__main__":
    answer(_answer)
