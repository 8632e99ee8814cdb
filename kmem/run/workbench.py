"""What a run does with candidates: drop duplicates, have them judged, record, archive; profile and
verify kernels.

One `Workbench` lives as long as a run is being worked on. It keeps the run's attempts and lessons,
its evaluator and its directory; it decides nothing. Attempts and profiles that memory already holds
for the run are taken from there, which is all that resuming needs.
"""

import ast
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from kmem.diagnose.signature import make_signature
from kmem.host.syntax import parse_python
from kmem.interfaces import Situation
from kmem.memory.ledger.experience import recall_experience
from kmem.memory.store import Memory
from kmem.orchestrate.lineage import base_of
from kmem.problem.graph import graph_sizes
from kmem.records import (
    Attempt,
    Baseline,
    Candidate,
    Contract,
    Experience,
    Kernel,
    Lesson,
    Measurement,
    Outcome,
    Profile,
    Recalled,
    Run,
    Signature,
    Status,
    Strategy,
    content_hash,
)
from kmem.run.directory import RunDirectory
from kmem.run.evaluator import Announce, Evaluator
from kmem.run.session import Session, versions

logger = logging.getLogger(__name__)

OpenEvaluator: TypeAlias = Callable[[Announce], Evaluator]


@dataclass(frozen=True, slots=True)
class Event:
    """What a progress display shows: the stage, a sentence, and where the run stands."""

    stage: str
    text: str
    best_ms: float | None
    baseline_ms: float | None
    speed_of_light: float | None
    measurements: int
    seconds_left: float
    estimated: bool


class Workbench:
    """A context manager; see the module's docstring.

    `run`, `session`, `memory` and `directory` are there for the stages.
    """

    def __init__(
        self,
        run: Run,
        session: Session,
        memory: Memory,
        on_event: Callable[[Event], None],
        open_evaluator: OpenEvaluator,
    ) -> None:
        self.run = run
        self.session = session
        self.memory = memory
        self._on_event = on_event
        self._open_evaluator, self._evaluator = open_evaluator, None
        self.directory = RunDirectory(Path(run.out_dir))
        self._versions = versions()
        self._baselines: tuple[Baseline, ...] = ()
        self._background = ThreadPoolExecutor(1)
        self._timing_baselines: Future[tuple[Baseline, ...]] | None = None
        self._profiles = {profile.kernel: profile for profile in memory.runs.profiles(run.id)}
        # An interrupted attempt says nothing, so it is made again.
        finished = [
            attempt
            for attempt in memory.runs.attempts(run.id)
            if attempt.measurement.status is not Status.INTERRUPTED
        ]
        self._known = {attempt.candidate.kernel.hash: attempt for attempt in finished}
        self._sources: set[str] = set()
        self._experience: tuple[Experience, ...] | None = None
        self.attempts: list[Attempt] = []
        self.lessons: list[Lesson] = []
        self.measurements = 0

    def __enter__(self) -> "Workbench":
        self._evaluator = self._open_evaluator(self.announce)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.evaluator.close()
        self._background.shutdown()

    @property
    def evaluator(self) -> Evaluator:
        assert self._evaluator is not None, "a workbench is a context manager"
        return self._evaluator

    @property
    def seconds_left(self) -> float:
        """All of the budget while the evaluator is being opened, which may have to wait for the
        GPU's memory.
        """
        return (
            self._evaluator.seconds_left
            if self._evaluator is not None
            else 60 * self.run.budget.minutes
        )

    @property
    def best(self) -> Attempt | None:
        """The fastest attempt that passed."""
        ranking = self.ranking()
        return ranking[0] if ranking else None

    def ranking(self) -> list[Attempt]:
        """Attempts that passed, fastest first."""
        passed = [
            attempt for attempt in self.attempts if attempt.measurement.status is Status.PASSED
        ]
        return sorted(passed, key=lambda attempt: attempt.measurement.latency_ms)

    def attempt(self, kernel_hash: str | None) -> Attempt | None:
        """The attempt of this run at a kernel."""
        return next(
            (attempt for attempt in self.attempts if attempt.candidate.kernel.hash == kernel_hash),
            None,
        )

    def announce(self, stage: str, text: str) -> None:
        """Tell the progress display."""
        best = self.best.measurement.latency_ms if self.best else None
        bound = self.session.traced.bound
        timed = [baseline.timing.latency_ms for baseline in self._baselines if baseline.timing]
        light = bound.time_ms / best if bound and best else None
        baseline_ms = min(timed, default=None)
        seconds_left = max(0.0, self.seconds_left)
        self._on_event(
            Event(
                stage,
                text,
                best,
                baseline_ms,
                light,
                self.measurements,
                seconds_left,
                not self.session.present,
            )
        )

    def start_baselines(self) -> None:
        """Begin to find out how fast the unmodified module is, beside the compiling of the first
        candidates.
        """
        if not self.session.present:
            self._baselines = self.evaluator.baselines()
            return
        self._baselines = tuple(self.memory.devices.baselines(*self._baseline_key()))
        if not self._baselines:
            self.announce("measure", "timing the module itself: eager, compiled, max-autotune")
            self._timing_baselines = self._background.submit(self.evaluator.baselines)

    def baselines(self) -> tuple[Baseline, ...]:
        """The baselines: remembered, just measured (then kept), or without a GPU estimated from the
        graph.
        """
        if self._timing_baselines is not None:
            self._baselines = self._timing_baselines.result()
            self._timing_baselines = None
            self.memory.devices.put_baselines(*self._baseline_key(), self._baselines)
        return self._baselines

    def _baseline_key(self) -> tuple[str, str, str, Contract, dict[str, str]]:
        return (
            self.session.traced.problem.hash,
            "full",
            self.session.traced.device.full_name,
            self.run.contract,
            self._versions,
        )

    def measure(
        self,
        number: int,
        candidates: Sequence[Candidate],
        situations: Mapping[str | None, Situation],
    ) -> list[Attempt]:
        """Take candidates through compile and judge; every one that is not a duplicate becomes an
        attempt, and all new ones come back.

        Args: situations: of this round, by the hash of the kernel gone on from: what an attempt
            answers and is compared with.
        """
        before = len(self.attempts)
        fresh = {
            candidate.kernel.hash: candidate for candidate in candidates if self._is_new(candidate)
        }
        if not fresh:
            return []
        # A resumed run compiles again what it has measured (the cache answers): which candidates
        # are duplicates or worth proving must come out as it did before.
        admitted = self.evaluator.admit([candidate.kernel for candidate in fresh.values()])
        for kernel, log in admitted.failed:
            if not self._take_known(kernel):
                failed = Measurement(Status.BUILD_FAILED, None, not self.session.present, log=log)
                self._record(number, fresh[kernel.hash], failed, situations)
        waiting = [kernel for kernel in admitted.ready if not self._take_known(kernel)]
        if waiting:
            self.baselines()  # the judge does one thing at a time
            self.announce("measure", f"judging {len(waiting)} candidates")

            def on_result(index: int, measurement: Measurement) -> None:
                self._record(number, fresh[waiting[index].hash], measurement, situations)

            self.evaluator.screen(waiting, on_result)
        return self.attempts[before:]

    def verify(self, attempt: Attempt, baselines: Sequence[Baseline]) -> Attempt:
        """Everything the judge has, in a fresh process, against the best baseline; recorded as an
        outcome with that ratio.
        """
        self.announce("measure", "verifying the fastest kernel in a fresh process")
        verified = replace(
            attempt, measurement=self.evaluator.verify(attempt.candidate.kernel, baselines)
        )
        self.measurements += 1
        self.directory.write_verdict(verified)
        self.memory.runs.put_verdict(
            self.run.id, attempt.candidate.kernel.hash, verified.measurement
        )
        if verified.measurement.status is not Status.PASSED:
            refusal = verified.measurement.log.strip().splitlines()
            self.announce(
                "measure",
                (
                    f"refused: {verified.measurement.status.value}: "
                    f"{refusal[0] if refusal else 'no reason given'}"
                ),
            )
            # The ranking must not offer it again, and the ledger must know.
            self.attempts = [verified if kept is attempt else kept for kept in self.attempts]
        # This outcome is about the whole module against its best baseline; the step from the parent
        # was recorded when it was screened.
        self._record_outcome(replace(verified, parent_ms=None), None)
        return verified

    def keep_best(self, winner: Attempt | None) -> None:
        """Put the winner where the user looks for it, and the next best beside it; None takes away
        what an earlier run left there.
        """
        if winner is None:
            self.directory.remove_best()
        else:
            self.directory.write_best(winner)

    def keep_top(self, kernels: Sequence[Kernel]) -> None:
        """Keep the fastest distinct kernels as files, fastest first."""
        self.directory.write_top(kernels)

    def recall(self) -> list[Recalled]:
        """What memory offers for this graph, as it was when the run began: a resumed run must not
        recall what it has learnt itself.

        Best-of-n, the control, recalls nothing: its kernels are to be independent.
        """
        run, session = self.run, self.session
        if (
            run.memory_mode == "off"
            or run.strategy is Strategy.BEST_OF_N
            or session.traced.graph.opaque_reason
        ):
            return []
        kept = self.directory.read_recalled(run.id)
        if kept is None:
            graph = session.traced.graph
            kept = self.memory.winners.recall(
                graph.hash,
                graph.structure_hash,
                session.operators,
                graph_sizes(graph),
                arch=session.traced.device.arch,
                contract=run.contract,
            )
            self.directory.write_recalled(run.id, kept)
        return kept

    def experience(self) -> tuple[Experience, ...]:
        """How settings of the matching recipes did on other graphs, as memory knew it when the run
        began.
        """
        run, session = self.run, self.session
        if run.memory_mode == "off" or session.traced.graph.opaque_reason:
            return ()
        if self._experience is None:
            self._experience = self.directory.read_experience(run.id)
        if self._experience is None:
            graph = session.traced.graph
            self._experience = recall_experience(
                self.memory.storage,
                sorted(session.writable),
                graph_hash=graph.hash,
                structure_hash=graph.structure_hash,
                arch=session.traced.device.arch,
                contract=run.contract,
            )
            self.directory.write_experience(run.id, self._experience)
        return self._experience

    def profile(self, attempt: Attempt) -> Profile:
        """The profile of a kernel, by the best profiler that can run here; once per kernel and run.

        Raises ProfilerError: if none can.
        """
        kernel = attempt.candidate.kernel
        if kernel.hash not in self._profiles:
            self.announce("profile", f"profiling kernel {kernel.hash[:12]}")
            profile = self.evaluator.profile(attempt)
            self._profiles[kernel.hash] = profile
            self.memory.runs.put_profile(self.run.id, profile)
            self.directory.write_profile(attempt, profile)
        return self._profiles[kernel.hash]

    def signature(self, attempt: Attempt) -> Signature | None:
        """The signature of a kernel of this run, if it was profiled."""
        profile = self._profiles.get(attempt.candidate.kernel.hash)
        if profile is None:
            return None
        return make_signature(
            profile,
            self.session.traced.device,
            self.session.traced.bound,
            host_ms=attempt.measurement.latency_ms,
        )

    def keep_lessons(self, number: int, lessons: Sequence[Lesson]) -> None:
        """Add what a round taught to the run's short-term memory."""
        self.lessons += lessons
        self.memory.runs.put_lessons(self.run.id, number, lessons)

    def _is_new(self, candidate: Candidate) -> bool:
        """Whether this run sees the candidate's program for the first time, whatever its
        formatting.
        """
        source = normalised_source_hash(candidate.kernel.source)
        is_new = source not in self._sources
        self._sources.add(source)
        return is_new

    def _take_known(self, kernel: Kernel) -> bool:
        """Take a kernel's attempt from memory if this run finished it before it was killed."""
        known = self._known.get(kernel.hash)
        if known is not None:
            self._count(known)
        return known is not None

    def _count(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if attempt.measurement.status is not Status.BUILD_FAILED:
            self.measurements += 1

    def _record(
        self,
        number: int,
        candidate: Candidate,
        measurement: Measurement,
        situations: Mapping[str | None, Situation],
    ) -> None:
        """Keep an attempt everywhere it belongs, the moment it exists."""
        base = base_of(candidate.task, self.attempts)
        parent = self.attempt(base)
        diagnosis = situations[base].diagnosis if base in situations else None
        parent_ms = parent.measurement.latency_ms if parent else None
        attempt = Attempt(
            number, candidate, measurement, parent_ms, diagnosis.bottleneck if diagnosis else None
        )
        self._count(attempt)
        self.memory.runs.record_attempt(self.run.id, attempt)
        self.directory.write_attempt(len(self.attempts), attempt)
        self._record_outcome(attempt, diagnosis.signature if diagnosis else None)
        self.announce("measure", f"{candidate.task.skill}: {measurement.status.value}")

    def _record_outcome(self, attempt: Attempt, signature: Signature | None) -> None:
        """Only what was measured, and only if this run may write to the long-term memory."""
        measurement = attempt.measurement
        if (
            self.run.memory_mode != "rw"
            or measurement.estimated
            or measurement.status is Status.INTERRUPTED
        ):
            return
        session = self.session
        timing = measurement.timing
        task = attempt.candidate.task
        predicted_ms = attempt.candidate.estimated_ms
        self.memory.runs.put_kernel(attempt.candidate.kernel)
        self.memory.ledger.record(
            Outcome(
                problem=session.traced.problem.name,
                graph_hash=session.traced.graph.hash,
                structure_hash=session.traced.graph.structure_hash,
                sizes=graph_sizes(session.traced.graph),
                operators=session.operators,
                workload="full",
                device=session.traced.device.full_name,
                arch=session.traced.device.arch,
                contract=self.run.contract,
                skill=task.skill,
                choices=attempt.candidate.kernel.choices,
                move=task.move,
                bottleneck=attempt.bottleneck,
                signature=signature,
                source_hash=attempt.candidate.kernel.hash,
                parent_hash=attempt.candidate.kernel.parent,
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
                bound_ms=session.traced.bound.time_ms if session.traced.bound else None,
                flags=measurement.flags,
                versions=self._versions,
                origin=self.memory.contributors.own_name,
                created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                seed=self.run.seed,
                predicted_ms=predicted_ms
                if predicted_ms is not None and math.isfinite(predicted_ms)
                else None,
            )
        )


def normalised_source_hash(source: str) -> str:
    """Over the syntax tree: comments, blank lines and formatting do not make a new candidate.

    A text that does not parse is hashed as it is; compiling reports it.
    """
    try:
        return content_hash(ast.dump(parse_python(source)))
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return content_hash(source)
