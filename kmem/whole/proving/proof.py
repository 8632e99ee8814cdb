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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kmem.errors import ExecutorError
from kmem.records import Precision
from kmem.whole.composing.binding import forwards_of, read_composed
from kmem.whole.composing.compose import EAGER_REST
from kmem.whole.graphs.capture import Captured, build_real, capture
from kmem.whole.graphs.drawing import undrawable
from kmem.whole.graphs.source import Built, read_source
from kmem.whole.process import Tell, answer, ask, interpret_as_the_judge
from kmem.whole.proving.clock import (
    COMPILED,
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
from kmem.whole.proving.comparing import compare
from kmem.whole.proving.oracle import copied, is_expanded

_MODULE = "kmem.whole.proving.proof"
#: Elements made by all nodes of a forward up to which the interpreter ends in about a minute.
MOST_INTERPRETED = 200_000
LONGEST_PROOF_S = 900.0
#: Fields of a question that JSON makes lists of.
_LISTS = ("inputs", "baselines", "against", "without", "rests")


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
    """Ask in a process of its own; a crash, or a timeout before the composed model was compared and
    timed, is a proof that failed. What is not timed by then is missing.

    Args:
        on_begun: given the process, which another thread may end.
    """
    asked = asdict(question)
    try:
        found = ask(_MODULE, asked, gpu=gpu, timeout_s=timeout_s, on_begun=on_begun)
    except ExecutorError as ex:
        return Proof(False, "", str(ex))
    proof = Proof(**found)
    if not proof.passed or not question.time:
        return proof
    wanted = [name.removesuffix(GRAPH) for name in (*question.baselines, *question.against)]
    late = {name: LATE for name in wanted if name in COMPILED and name not in proof.baselines_ms}
    return replace(proof, missing={**late, **proof.missing})


# --- in the process


def find_proof(question: Question, tell: Callable[[Proof], None] = lambda proof: None) -> Proof:
    """Compare, and where that is asked time.

    Args:
        tell: told what is known by then before other ways are compiled, which may take too long.
    """
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
            found = compare(case, captured, ways, precision, compile_s)
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
        proof = Proof(True, how, "", error, eager_error, missing=missing)
        if not question.time or device != "cuda":
            return proof
        wanted = Wanted(
            question.baselines,
            question.against,
            question.without,
            question.backward,
            compile_s,
            tuple(ways),
        )

        def timed(times: dict[str, Any]) -> Proof:
            return replace(proof, **{**times, "missing": {**missing, **times["missing"]}})

        return timed(
            time_whole(built, composed, wanted, known=ways, tell=lambda found: tell(timed(found)))
        )


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


def _answer(asked: dict[str, Any], tell: Tell) -> dict[str, Any]:
    interpret_as_the_judge()
    lists = {name: tuple(asked[name]) for name in _LISTS}
    question = Question(**{**asked, **lists})
    return asdict(find_proof(question, lambda proof: tell(asdict(proof))))


if __name__ == "__main__":
    answer(_answer)
