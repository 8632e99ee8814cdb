"""The suite of `Evaluator`: recorded ones pass it, and each way to break it is named."""

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path

import pytest
from module_problems import recipe
from scripted_evaluator import ScriptedEvaluator, kernel_text, open_traced_session, timing
from synthetic_landscapes import synthetic_landscape

from kmem.devices import named_target
from kmem.learning.simulate import RecordedEvaluator, open_recorded_session
from kmem.memory.runs.runs import Verdict
from kmem.memory.store import Memory
from kmem.problem.source.load import load_problem
from kmem.records import (
    Attempt,
    Baseline,
    Candidate,
    Kernel,
    Measurement,
    Move,
    Profile,
    RunResult,
    Status,
    Task,
)
from kmem.run.evaluation.evaluator import Admitted, Evaluator
from kmem.run.replay import RecordedRun
from kmem.run.setup.session import Session
from kmem.testing import check_evaluator

PROBLEMS = Path(__file__).parent.parent / "problems"
KERNELS = [
    Kernel(kernel_text(8.0)),
    Kernel(kernel_text(9.0, fails=Status.BUILD_FAILED.value)),
    Kernel(kernel_text(7.0, fails=Status.WRONG_VALUES.value)),
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    with Memory(tmp_path_factory.mktemp("memory") / "kmem.db") as memory:
        return open_traced_session(memory)


def test_the_evaluator_of_the_tests_keeps_the_contract(session: Session) -> None:
    check_evaluator(lambda: ScriptedEvaluator(session), KERNELS)


def test_the_evaluator_of_a_landscape_keeps_the_contract() -> None:
    recipes = {"fuse-pointwise-chain": recipe("fuse-pointwise-chain")}
    landscape = synthetic_landscape(
        load_problem(PROBLEMS / "swish"), recipes, named_target("h200"), settings=4
    )
    session = open_recorded_session(landscape, {})
    kernels = [Kernel(f"# {place}", choices=c) for place, c in enumerate(landscape.settings)]
    check_evaluator(lambda: RecordedEvaluator(landscape, session), kernels)


def test_the_evaluator_of_a_run_that_is_walked_again_keeps_the_contract() -> None:
    verdicts = [
        Measurement(Status.PASSED, timing(8.0), False),
        Measurement(Status.BUILD_FAILED, None, False, log="it does not build"),
        Measurement(Status.WRONG_VALUES, None, False, log="output 0 is wrong"),
    ]
    task = Task(Move.SEED, "unaided", None, 1, "why")
    attempts = [
        Attempt(0, Candidate(kernel, task, "llm"), verdict, None)
        for kernel, verdict in zip(KERNELS, verdicts, strict=True)
    ]
    baselines = (Baseline("eager", timing(10.0), False),)
    verified = {KERNELS[0].hash: Verdict(Measurement(Status.PASSED, timing(8.0, 10.0), False))}
    result = RunResult(
        "r1", "p", "h200", False, attempts[0], baselines, None, 1.25, None, False, 3, 1.0, "done"
    )
    check_evaluator(lambda: RecordedRun(attempts, verified, result), KERNELS)


class Nameless(ScriptedEvaluator):
    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        for _ in range(2):
            super().baselines(names, limit_s, on_found)


class AdmitsTwice(ScriptedEvaluator):
    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        found = super().admit(kernels)
        return replace(found, ready=(*found.ready, found.failed[0][0]))


class AdmitsOthers(ScriptedEvaluator):
    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        return Admitted((), (Kernel("# another"),))


class FailsSilently(ScriptedEvaluator):
    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        found = super().admit(kernels)
        return replace(found, failed=tuple((kernel, "") for kernel, _ in found.failed))


class JudgesTheFirst(ScriptedEvaluator):
    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        super().screen(kernels[:1], on_result, by_recipes=by_recipes)


class VerifiesAlone(ScriptedEvaluator):
    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        return Measurement(Status.PASSED, timing(8.0), False)


class ProfilesAnother(ScriptedEvaluator):
    def profile(self, attempt: Attempt) -> Profile:
        return replace(super().profile(attempt), kernel="0" * 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda session: ScriptedEvaluator(session, lambda: float("nan")), "a number of seconds"),
        (Nameless, "every baseline has a name of its own"),
        (AdmitsTwice, "once and not both"),
        (AdmitsOthers, "the kernels that it was asked about, and no others"),
        (FailsSilently, "which failed, says why"),
        (JudgesTheFirst, "a verdict on each of 2 kernels once"),
        (VerifiesAlone, r"times against the best baseline, one of \['eager'\]"),
        (ProfilesAnother, "a profile names its kernel"),
    ],
)
def test_an_evaluator_that_breaks_the_contract_is_told_how(
    make: Callable[[Session], Evaluator], message: str, session: Session
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_evaluator(lambda: make(session), KERNELS)


def test_an_evaluator_that_answers_a_resumed_run_otherwise_is_told_so(session: Session) -> None:
    opened = []

    class Moody(ScriptedEvaluator):
        def admit(self, kernels: Sequence[Kernel]) -> Admitted:
            found = super().admit(kernels)
            return found if len(opened) == 1 else replace(found, ready=found.ready[:1])

    def open_evaluator() -> Evaluator:
        opened.append(Moody(session))
        return opened[-1]

    with pytest.raises(AssertionError, match="must answer alike in a resumed run"):
        check_evaluator(open_evaluator, KERNELS)
