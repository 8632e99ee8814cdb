"""`kmem runs replay`: walk a finished run again from its records, and say where the walk differs.

No network, no GPU, no compiler. Answers come from the run's conversations, verdicts from its
attempts, diagnoses and profiles from memory. Everything that is decided in between is decided anew:
directions, plans, prompts, duplicates of text, repairs, claims, lessons, the reason to stop. The
minutes end at the same look at the clock as in the run; a question that the run had no answer to in
time is not answered now.

Covered: runs of any author and strategy, interrupted and resumed ones too. Not covered: what the
world decided and nobody wrote down (which candidates compiled to the same binary as another); a
candidate without an attempt is taken to have been dropped in the run.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.devices import resolve_target
from kmem.errors import (
    BUDGET_SPENT,
    BudgetExhausted,
    KmemError,
    OutOfTime,
    ProfilerError,
    ReplayError,
)
from kmem.interfaces import (
    Completion,
    CompletionKey,
    CompletionRecord,
    ModelRequest,
    Provider,
    Unanswered,
)
from kmem.memory.runs.runs import Verdict
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
from kmem.run.directory import RunDirectory
from kmem.run.evaluation.evaluator import Admitted, Evaluator
from kmem.run.loop import optimize
from kmem.run.setup.session import Session, open_session
from kmem.run.stages.recall import read_rungs, write_rungs
from kmem.run.state.background import copy_backgrounds
from kmem.run.state.clock import Clock
from kmem.run.state.progress import Announce, Event


class RecordedClock(Clock):
    """A clock that runs out after as many looks as in the run, and cuts no answer short."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(lambda: math.inf)
        looks, verifications = result.looks_in_time, result.verifications_in_time
        self._looks_left = math.inf if looks is None else looks
        self._verifications_left = math.inf if verifications is None else verifications

    @property
    def is_running_out(self) -> bool:
        """Whether the next look will find that the minutes are over."""
        return self._looks_left == 0

    def is_over(self) -> bool:
        if self.is_running_out:
            return True
        self._looks_left -= 1
        return False

    def may_verify(self, *, is_first: bool) -> bool:
        self._verifications_left -= 1
        return self._verifications_left >= 0

    def is_ready(self, known: bool) -> bool:
        """Never: where a run verified early is in its records."""
        return False


class RecordedRun(Evaluator):
    """An evaluator that measures nothing: it repeats what the run found out about its kernels."""

    def __init__(
        self, attempts: Sequence[Attempt], verdicts: Mapping[str, Verdict], result: RunResult
    ) -> None:
        self._attempts = {attempt.candidate.kernel.hash: attempt for attempt in attempts}
        self._verdicts, self._result = verdicts, result

    @property
    def seconds_left(self) -> float:
        """No limit; the loop looks at a RecordedClock."""
        return math.inf

    def baselines(
        self, names: Sequence[str], limit_s: float, on_found: Callable[[Baseline], None]
    ) -> None:
        for baseline in self._result.baselines:
            on_found(baseline)

    def admit(self, kernels: Sequence[Kernel]) -> Admitted:
        """Drop the kernels that the run dropped: those without an attempt."""
        wanted = {kernel.hash for kernel in kernels}
        known = [
            attempt for kernel_hash, attempt in self._attempts.items() if kernel_hash in wanted
        ]
        failed, ready = [], []
        for attempt in known:
            if attempt.measurement.status is Status.BUILD_FAILED:
                failed.append((attempt.candidate.kernel, attempt.measurement.log))
            else:
                ready.append(attempt.candidate.kernel)
        return Admitted(tuple(failed), tuple(ready))

    def screen(
        self,
        kernels: Sequence[Kernel],
        on_result: Callable[[int, Measurement], None],
        *,
        by_recipes: Set[str] = frozenset(),
    ) -> None:
        for index, kernel in enumerate(kernels):
            on_result(index, self._attempts[kernel.hash].measurement)

    def verify(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement:
        if kernel.hash not in self._verdicts:
            raise ReplayError(f"kernel {kernel.hash[:12]} is to be verified now, and was not then")
        return self._verdicts[kernel.hash].measurement

    def profile(self, attempt: Attempt) -> Profile:
        """Raise ProfilerError: the replay's memory has all recorded profiles, and not this one."""
        raise ProfilerError(
            f"no profile of kernel {attempt.candidate.kernel.hash[:12]} was recorded"
        )

    def close(self) -> None:
        pass


class RecordedAnswers:
    """An archive that finds no answer, so that every prompt is written anew and can be compared.

    `find` notes which question the thread is about to put; the provider that is asked next answers
    that question from the records. A thread asks one question at a time.
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
        """Find nothing, so that the question is put."""
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
        """None: a replay begins with its whole budget."""
        return []

    def answer(self, request: ModelRequest) -> Completion:
        """What the run's model answered.

        Raises:
            OutOfTime: if there was no answer, and the minutes ended at the next look.
            BudgetExhausted: if there was no answer, and the run had a budget: which of several
                questions side by side the budget still covered is known from the records alone.
            ReplayError: if neither explains that there was no answer.
        """
        key = self._asked.key
        record = self._records.get(key)
        if record is None and self._clock.is_running_out:
            raise OutOfTime(f"{_question(key)} was not answered in time")
        if record is None and self._is_limited:
            raise BudgetExhausted(f"{BUDGET_SPENT}: {_question(key)} was not put")
        if record is None:
            raise ReplayError(f"{_question(key)} is put now, and was not then")
        if (record.request.model, record.request.messages) != (request.model, request.messages):
            with self._lock:
                self.differences.append(f"the prompt of {_question(key)} reads otherwise")
        return record.completion

    def unasked(self) -> list[str]:
        """Questions that the run put and the replay did not."""
        kept = set(self.kept)
        return [
            f"{_question(key)} was put then, and is not now"
            for key in self._records
            if key not in kept
        ]


class RecordedProvider(Provider):
    """Gives recorded answers under the name of the provider that gave them.

    So they cost in the replay what they cost in the run.
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
    """Walk `run` again into the directory `out`.

    Returns:
        The differences; none if the walk came out identical.

    Raises:
        ReplayError: if the run has not finished.
        ProblemError, SkillError: if a session cannot be opened any more.
    """
    result = memory.runs.result(run.id)
    if result is None:
        raise ReplayError(
            f"Run {run.id} has not finished, so there is no end to compare with; kmem runs resume "
            f"{run.id} first"
        )
    clock = RecordedClock(result)
    answers = RecordedAnswers(memory.conversations.all(run.id), run.budget, clock)
    providers: dict[str, Provider] = {
        name: RecordedProvider(provider, answers) for name, provider in registry.providers.items()
    }
    attempts = memory.runs.attempts(run.id)
    evaluator = RecordedRun(attempts, memory.runs.verdicts(run.id), result)
    again = replace(
        run, out_dir=str(out.resolve()), budget=replace(run.budget, usd=None, tokens=None)
    )
    _copy_what_was_recalled(run, out)

    def open_evaluator(announce: Announce) -> Evaluator:
        return evaluator

    # nothing of the replay may reach the user's memory
    with TemporaryDirectory() as home, Memory(Path(home) / "replay.db") as scratch:
        scratch.runs.start(again)
        _copy_what_was_known(run, memory, scratch)
        session = _open_session(run, result, registry, memory, scratch)
        try:
            repeated = optimize(
                again,
                session,
                scratch,
                replace(registry, providers=providers),
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


def _copy_what_was_recalled(run: Run, out: Path) -> None:
    """Into the replay's directory, from the run's."""
    source, target = RunDirectory(Path(run.out_dir)), RunDirectory(out)
    target.write_recalled(run.id, source.read_recalled(run.id) or [])
    target.write_experience(run.id, source.read_experience(run.id) or ())
    target.write_descents(run.id, source.read_descents(run.id) or ())
    write_rungs(target, run.id, read_rungs(source, run.id) or ())
    copy_backgrounds(run.id, source.root, target)


def _copy_what_was_known(run: Run, memory: Memory, scratch: Memory) -> None:
    """Profiles, diagnoses, final verdicts, and the skills retracted before the run began."""
    for profile in memory.runs.profiles(run.id):
        scratch.runs.put_profile(run.id, profile)
    for kept in memory.runs.diagnoses(run.id):
        scratch.runs.put_diagnosis(
            run.id, kept.round, kept.kernel, kept.diagnosis, kept.prescriptions
        )
    for kernel_hash, verdict in memory.runs.verdicts(run.id).items():
        scratch.runs.put_verdict(run.id, kernel_hash, verdict)
    for retraction in memory.ledger.retractions():
        if retraction.created_at <= run.created_at:
            scratch.ledger.record_retraction(retraction)


def _open_session(
    run: Run, result: RunResult, registry: Registry, memory: Memory, scratch: Memory
) -> Session:
    """The session of the run, with the bound that it had."""
    device, _ = resolve_target(run.target)
    if not result.estimated:
        device = memory.devices.ceilings(device.name) or device
    session = open_session(
        run.problem, run.contract, device, not result.estimated, registry, scratch
    )
    return replace(session, traced=replace(session.traced, bound=result.bound))


def _compare_plans(memory: Memory, scratch: Memory, run_id: str) -> list[str]:
    then = {entry.round: entry.plan for entry in memory.runs.plans(run_id)}
    now = {entry.round: entry.plan for entry in scratch.runs.plans(run_id)}
    return [
        f"the plan of round {number} differs"
        for number in sorted({*then, *now})
        if then.get(number) != now.get(number)
    ]


def _compare_attempts(then: Sequence[Attempt], now: Sequence[Attempt]) -> list[str]:
    """The first attempt that differs; the attempts after it follow from it."""
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
        BUDGET_SPENT in then.reason and BUDGET_SPENT in now.reason
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
