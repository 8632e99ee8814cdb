"""Walk a finished run again from what was recorded of it, and say where the second walk differs: no
network, no GPU, no compiler.

Answers come from the run's conversations, verdicts from its attempts, diagnoses and profiles from
memory. Everything that is decided in between is decided anew: directions, plans, prompts,
duplicates of text, repairs, claims, lessons, the reason to stop. The minutes end at the look at the
clock at which they ended then; a question that was not answered in time then is not answered now.

Covered: runs of any author and strategy, interrupted and resumed ones too. Not covered: what the
world decided and nobody wrote down (which candidates compiled to the same binary as another); a
candidate without an attempt is taken to have been dropped then.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.devices import resolve_target
from kmem.errors import BudgetExhausted, KmemError, OutOfTime, ProfilerError, ReplayError
from kmem.interfaces import (
    Completion,
    CompletionKey,
    CompletionRecord,
    ModelRequest,
    Provider,
    Unanswered,
)
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import (
    Attempt,
    Baseline,
    Budget,
    Kernel,
    Measurement,
    Profile,
    Run,
    RunResult,
    Status,
)
from kmem.run.clock import Clock
from kmem.run.directory import RunDirectory
from kmem.run.evaluator import Admitted, Announce, Evaluator
from kmem.run.loop import optimize
from kmem.run.session import open_session
from kmem.run.workbench import Event

#: How BudgetExhausted begins (explore/models/cost/budget.py); the figures after it depend on the
#: order of questions side by side.
_BUDGET_SPENT = "The budget for language models is spent"


class RecordedClock(Clock):
    """A clock that runs out after as many looks as then, and keeps nobody from answering."""

    def __init__(self, looks_in_time: int | None) -> None:
        super().__init__(lambda: math.inf)
        self._looks_left = math.inf if looks_in_time is None else looks_in_time

    @property
    def is_running_out(self) -> bool:
        """Whether the next look will find that the minutes are over."""
        return self._looks_left == 0

    def is_over(self) -> bool:
        if self.is_running_out:
            return True
        self._looks_left -= 1
        return False


class RecordedRun(Evaluator):
    """An evaluator that measures nothing: it knows what a run's kernels turned out to be."""

    def __init__(
        self, attempts: Sequence[Attempt], verdicts: dict[str, Measurement], result: RunResult
    ) -> None:
        self._attempts = {attempt.candidate.kernel.hash: attempt for attempt in attempts}
        self._verdicts, self._result = verdicts, result

    @property
    def seconds_left(self) -> float:
        """Without end; the loop looks at a RecordedClock."""
        return math.inf

    def baselines(self) -> tuple[Baseline, ...]:
        return self._result.baselines

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Kernels without an attempt were dropped then, and are now."""
        wanted = {kernel.hash for kernel in kernels}
        known = [
            attempt for kernel_hash, attempt in self._attempts.items() if kernel_hash in wanted
        ]
        return Admitted(
            tuple(
                (a.candidate.kernel, a.measurement.log)
                for a in known
                if a.measurement.status is Status.BUILD_FAILED
            ),
            tuple(
                a.candidate.kernel for a in known if a.measurement.status is not Status.BUILD_FAILED
            ),
        )

    def screen(
        self, kernels: Sequence[Kernel], on_result: Callable[[int, Measurement], None]
    ) -> None:
        for index, kernel in enumerate(kernels):
            on_result(index, self._attempts[kernel.hash].measurement)

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        if kernel.hash not in self._verdicts:
            raise ReplayError(f"kernel {kernel.hash[:12]} is to be verified now, and was not then")
        return self._verdicts[kernel.hash]

    def profile(self, attempt: Attempt) -> Profile:
        """Recorded profiles are in the replay's memory from the start, so only a missing one is
        asked for.
        """
        raise ProfilerError(
            f"no profile of kernel {attempt.candidate.kernel.hash[:12]} was recorded"
        )

    def close(self) -> None:
        pass


class RecordedAnswers:
    """An archive that finds nothing but remembers which question was named, and the answer to it
    for the provider asked next.

    So every prompt is written anew and can be compared with the one of then. A thread asks one
    question at a time.
    """

    def __init__(
        self, records: Sequence[CompletionRecord], budget: Budget, clock: RecordedClock
    ) -> None:
        self._clock = clock
        self._is_limited = budget.usd is not None or budget.tokens is not None
        self._records = {record.key: record for record in records}
        self._asked = threading.local()
        self._lock = threading.Lock()
        self.kept: list[CompletionKey] = []
        self.differences: list[str] = []

    def find(self, key: CompletionKey) -> None:
        """Nothing is known yet, so that the question is put."""
        self._asked.key = key

    def note(self, question: Unanswered) -> None:
        """Nothing can be lost here."""

    def withdraw(self, key: CompletionKey) -> None:
        """Nothing was noted."""

    def unanswered(self) -> list[Unanswered]:
        """None."""
        return []

    def keep(self, record: CompletionRecord) -> None:
        """Note that a question was put again."""
        with self._lock:
            self.kept.append(record.key)

    def records(self) -> list[CompletionRecord]:
        """A replay begins with a full purse."""
        return []

    def answer(self, request: ModelRequest) -> Completion:
        """What was answered then.

        Raises OutOfTime: if the question was not answered and the minutes ended then.
        BudgetExhausted: if there was a budget: which of several questions side by side it still
        covered is known from the record alone. ReplayError: if neither explains it.
        """
        key = self._asked.key
        record = self._records.get(key)
        if record is None and self._clock.is_running_out:
            raise OutOfTime(f"{_question(key)} was not answered in time")
        if record is None and self._is_limited:
            raise BudgetExhausted(f"{_BUDGET_SPENT}: {_question(key)} was not put")
        if record is None:
            raise ReplayError(f"{_question(key)} is put now, and was not then")
        if (record.request.model, record.request.messages) != (request.model, request.messages):
            with self._lock:
                self.differences.append(f"the prompt of {_question(key)} reads otherwise")
        return record.completion

    def unasked(self) -> list[str]:
        """Questions of then that were not put again."""
        kept = set(self.kept)
        return [
            f"{_question(key)} was put then, and is not now"
            for key in self._records
            if key not in kept
        ]


class RecordedProvider(Provider):
    """Gives recorded answers under the name of the provider that gave them, so that they cost now
    what they cost then.
    """

    def __init__(self, provider: Provider, answers: RecordedAnswers) -> None:
        self.name, self.counts_tokens = provider.name, provider.counts_tokens
        self._answers = answers

    def complete(self, request: ModelRequest) -> Completion:
        return self._answers.answer(request)

    def models(self, base_url: str | None = None) -> list[str]:
        return []


def replay_run(
    run: Run, out: Path, registry: Registry, memory: Memory, on_event: Callable[[Event], None]
) -> list[str]:
    """Walk `run` again into the directory `out`; the differences found, none if it came out
    identical.

    Raises ReplayError: if the run has not finished. ProblemError, SkillError: if a session cannot
    be opened any more.
    """
    result = memory.runs.result(run.id)
    if result is None:
        raise ReplayError(
            f"Run {run.id} has not finished, so there is no end to compare with; kmem runs resume "
            f"{run.id} first"
        )
    clock = RecordedClock(result.looks_in_time)
    attempts = memory.runs.attempts(run.id)
    answers = RecordedAnswers(memory.conversations.all(run.id), run.budget, clock)
    again = replace(
        run, out_dir=str(out.resolve()), budget=replace(run.budget, usd=None, tokens=None)
    )
    directory = RunDirectory(out)
    then = RunDirectory(Path(run.out_dir))
    directory.write_recalled(run.id, then.read_recalled(run.id) or [])
    directory.write_experience(run.id, then.read_experience(run.id) or ())
    providers: dict[str, Provider] = {
        name: RecordedProvider(provider, answers) for name, provider in registry.providers.items()
    }
    evaluator = RecordedRun(attempts, memory.runs.verdicts(run.id), result)

    def open_evaluator(announce: Announce) -> Evaluator:
        return evaluator

    device, _ = resolve_target(run.target)
    if not result.estimated:
        device = memory.devices.ceilings(device.name) or device
    # nothing of it may reach the user's memory
    with TemporaryDirectory() as home, Memory(Path(home) / "replay.db") as scratch:
        scratch.runs.start(again)
        for profile in memory.runs.profiles(run.id):
            scratch.runs.put_profile(run.id, profile)
        for kept in memory.runs.diagnoses(run.id):
            scratch.runs.put_diagnosis(
                run.id, kept.round, kept.kernel, kept.diagnosis, kept.prescriptions
            )
        # a run uses no skill that was retracted before it began
        for retraction in memory.ledger.retractions():
            if retraction.created_at <= run.created_at:
                scratch.ledger.record_retraction(retraction)
        session = open_session(
            run.problem, run.contract, device, not result.estimated, registry, scratch
        )
        session = replace(session, bound=result.bound)
        replaying = replace(registry, providers=providers)
        try:
            repeated = optimize(
                again,
                session,
                scratch,
                replaying,
                on_event,
                open_evaluator=open_evaluator,
                archive=answers,
                clock=clock,
            )
        except KmemError as ex:
            return [*answers.differences, f"the run ended early: {ex}"]
        return [
            *_compare_plans(memory, scratch, run.id),
            *_compare_attempts(attempts, scratch.runs.attempts(run.id)),
            *answers.differences,
            *answers.unasked(),
            *_compare_ends(memory, scratch, result, repeated),
        ]


def _compare_plans(memory: Memory, scratch: Memory, run_id: str) -> list[str]:
    then, now = (
        {entry.round: entry.plan for entry in each.runs.plans(run_id)} for each in (memory, scratch)
    )
    return [
        f"the plan of round {number} differs"
        for number in sorted({*then, *now})
        if then.get(number) != now.get(number)
    ]


def _compare_attempts(then: Sequence[Attempt], now: Sequence[Attempt]) -> list[str]:
    """The first attempt that differs: those after it follow from it."""
    for place, (one, other) in enumerate(zip(then, now, strict=False), 1):
        if one != other:
            return [f"attempt {place} is {_attempt(other)} now, and was {_attempt(one)}"]
    if len(then) != len(now):
        return [f"{len(now)} attempts now, and {len(then)} then"]
    return []


def _compare_ends(memory: Memory, scratch: Memory, then: RunResult, now: RunResult) -> list[str]:
    found = []
    if memory.runs.lessons(then.run) != scratch.runs.lessons(then.run):
        found.append("the lessons differ")
    if then.reason != now.reason and not (
        _BUDGET_SPENT in then.reason and _BUDGET_SPENT in now.reason
    ):
        found.append(f"it stopped now because {now.reason}, and then because {then.reason}")
    if then.best != now.best:
        found.append("the winner differs")
    return found


def _attempt(attempt: Attempt) -> str:
    task = attempt.candidate.task
    return (
        f"{task.move.value} {task.skill} of round {attempt.round} (kernel "
        f"{attempt.candidate.kernel.hash[:12]})"
    )


def _question(key: CompletionKey) -> str:
    return f"the question to the {key.role} in round {key.round} about {key.slot}, turn {key.turn},"
