"""Where a candidate is recorded: what becomes of it in memory and in the run directory.

Everything is written the moment it is known, so that a killed run loses nothing it has measured.
Estimates, and runs that may only read the memory, leave no outcome in the ledger.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kmem.memory.ledger.settlements import Settlement
from kmem.memory.runs.runs import Verdict
from kmem.memory.store import Memory
from kmem.problem.graph import graph_sizes
from kmem.records import (
    Attempt,
    Baseline,
    Diagnosis,
    Kernel,
    Lesson,
    Outcome,
    Plan,
    Prescription,
    Profile,
    Run,
    Signature,
    Status,
    recipe_component,
)
from kmem.run.directory import RunDirectory
from kmem.run.setup.session import Session, versions


class Recorder:
    """Writes what one run finds out."""

    def __init__(
        self,
        run: Run,
        session: Session,
        memory: Memory,
        directory: RunDirectory,
        seconds_left: Callable[[], float],
    ) -> None:
        """Nothing is written yet.

        Args:
            seconds_left: what is left of the run's minutes; kept with every finding, so that a run
                that is killed and resumed has no more of them than any other.
        """
        self._seconds_left = seconds_left
        self._run = run
        self._session = session
        self._memory = memory
        self._directory = directory

    def record_attempt(self, number: int, attempt: Attempt, signature: Signature | None) -> None:
        """Keep an attempt: in memory, as files, and as an outcome in the ledger.

        Args:
            number: which attempt of the run it is, from 1.
            signature: of the kernel that the attempt started from.
        """
        self._memory.runs.record_attempt(self._run.id, attempt)
        self._record_time()
        self._directory.write_attempt(number, attempt)
        self._record_outcome(attempt, signature)

    def record_verdict(self, verified: Attempt, attempts: int, *, early: bool) -> None:
        """Keep the judge's final verdict on a kernel, passed or refused.

        Args:
            attempts: how many the run has made so far.
            early: whether its search goes on.
        """
        self._directory.write_verdict(verified)
        kernel_hash = verified.candidate.kernel.hash
        verdict = Verdict(verified.measurement, attempts, early)
        self._memory.runs.put_verdict(self._run.id, kernel_hash, verdict)
        # This outcome is about the whole module against its best baseline; the step from the parent
        # was recorded when the kernel was screened.
        self._record_outcome(replace(verified, parent_ms=None), None)

    def record_profile(self, attempt: Attempt, profile: Profile) -> None:
        """Keep the profile of an attempt's kernel."""
        self._memory.runs.put_profile(self._run.id, profile)
        self._record_time()
        self._directory.write_profile(attempt, profile)

    def record_diagnosis(
        self,
        number: int,
        kernel: Kernel,
        diagnosis: Diagnosis,
        prescriptions: Sequence[Prescription],
    ) -> None:
        """Keep what a round found about a kernel that it goes on from."""
        self._memory.runs.put_diagnosis(self._run.id, number, kernel.hash, diagnosis, prescriptions)

    def record_plan(self, number: int, plan: Plan) -> None:
        """Keep what a round is going to try."""
        self._memory.runs.put_plan(self._run.id, number, plan)
        self._record_time()

    def record_lessons(self, number: int, lessons: Sequence[Lesson]) -> None:
        """Keep what a round taught."""
        self._memory.runs.put_lessons(self._run.id, number, lessons)
        if self._run.memory_mode == "rw":
            for lesson in lessons:
                self._record_settlement(lesson)

    def _record_settlement(self, lesson: Lesson) -> None:
        """Keep what became of the prediction of an outcome that this memory recorded."""
        if all(check.held is None for check in lesson.checks):
            return
        own_name = self._memory.contributors.own_name
        predicted = [
            entry
            for entry in self._memory.ledger.entries(
                skill=lesson.skill, source_hash=lesson.kernel, status=Status.PASSED
            )
            if entry.outcome.claims and entry.writer == own_name
        ]
        if predicted:
            settled = Settlement(predicted[-1].hash, lesson.checks, own_name, _now())
            self._memory.ledger.record_settlement(settled)

    def _record_time(self) -> None:
        spent_s = 60 * self._run.budget.minutes - self._seconds_left()
        if math.isfinite(spent_s):  # a replay has no clock
            self._memory.runs.put_seconds_spent(self._run.id, spent_s)

    def record_provisional(self, attempt: Attempt, baseline: Baseline | None) -> None:
        """Put the best kernel so far where the winner will be: the run may be ended before that."""
        self._directory.write_provisional(attempt, baseline)

    def record_best(self, winner: Attempt | None) -> None:
        """Put the winner where the user looks for it; without one, the provisional one goes."""
        if winner is None:
            self._directory.remove_best()
        else:
            self._directory.write_best(winner, self._run.id)

    def record_top(self, kernels: Sequence[Kernel]) -> None:
        """Keep the fastest distinct kernels as files, fastest first."""
        self._directory.write_top(kernels)

    def _record_outcome(self, attempt: Attempt, signature: Signature | None) -> None:
        """Only what was measured, and only if this run may write to the long-term memory."""
        measurement = attempt.measurement
        if (
            self._run.memory_mode != "rw"
            or measurement.estimated
            or measurement.status is Status.INTERRUPTED
        ):
            return
        self._memory.runs.put_kernel(attempt.candidate.kernel)
        self._memory.ledger.record(
            make_outcome(
                attempt,
                self._session,
                signature=signature,
                seed=self._run.seed,
                origin=self._memory.contributors.own_name,
            )
        )


def make_outcome(
    attempt: Attempt, session: Session, *, signature: Signature | None, seed: int, origin: str
) -> Outcome:
    """What the ledger keeps of a measured attempt.

    Args:
        signature: of the kernel that the attempt started from, if that was profiled.
        seed: of the run or verdict.
        origin: this memory's contributor.
    """
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    measurement, timing = attempt.measurement, attempt.measurement.timing
    traced = session.traced
    predicted_ms = attempt.candidate.estimated_ms
    written_by = {
        recipe_component(choice.recipe): session.recipe_versions[choice.recipe]
        for choice in kernel.choices
        if choice.recipe in session.recipe_versions
    }
    is_predicted = predicted_ms is not None and math.isfinite(predicted_ms)
    return Outcome(
        problem=traced.problem.name,
        graph_hash=traced.graph.hash,
        structure_hash=traced.graph.structure_hash,
        sizes=graph_sizes(traced.graph),
        operators=session.operators,
        workload=traced.workload.name,
        device=traced.device.full_name,
        arch=traced.device.arch,
        contract=traced.contract,
        skill=task.skill,
        choices=kernel.choices,
        move=task.move,
        bottleneck=attempt.bottleneck,
        signature=signature,
        source_hash=kernel.hash,
        parent_hash=kernel.parent,
        status=measurement.status,
        latency_ms=timing.latency_ms if timing else None,
        latency_ms_p20=timing.latency_ms_p20 if timing else None,
        latency_ms_p80=timing.latency_ms_p80 if timing else None,
        parent_ms=attempt.parent_ms,
        baseline=timing.reference if timing else None,
        baseline_ms=timing.reference_ms if timing else None,
        ratio=timing.ratio if timing else None,
        ratio_low=timing.ratio_low if timing else None,
        ratio_high=timing.ratio_high if timing else None,
        bound_ms=traced.bound.time_ms if traced.bound else None,
        flags=measurement.flags,
        versions=versions() | written_by,
        origin=origin,
        created_at=_now(),
        seed=seed,
        predicted_ms=predicted_ms if is_predicted else None,
        claims=task.claims or None,
    )


def _now() -> str:
    """The time, ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
