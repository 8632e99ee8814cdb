"""Stage 6: take candidates through the evaluator, without the duplicates, and record what came out.

`Measurer` decides nothing about the run: what it measures becomes an attempt in the history and is
recorded the moment it exists.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count

from kmem.host.syntax import parse_python
from kmem.interfaces import RECIPES, Situation
from kmem.measure.competition import Awaited
from kmem.orchestrate.accuracy import describe_climb, near_miss, next_rungs
from kmem.orchestrate.lineage import base_of
from kmem.records import (
    Attempt,
    Baseline,
    Candidate,
    Kernel,
    Measurement,
    Profile,
    Status,
    content_hash,
    fastest_baseline,
)
from kmem.run.evaluation.evaluator import Evaluator
from kmem.run.setup.session import Session
from kmem.run.state.history import History
from kmem.run.state.progress import Announce
from kmem.run.state.recorder import Recorder


class Measurer:
    """Judges, verifies and profiles the kernels of one run."""

    def __init__(
        self,
        evaluator: Evaluator,
        history: History,
        recorder: Recorder,
        announce: Announce,
        session: Session,
    ) -> None:
        """Nothing runs yet."""
        self._evaluator = evaluator
        self._history = history
        self._recorder = recorder
        self._announce = announce
        self._session = session
        self._sources: set[str] = set()
        self._expected: set[str] = set()  # hashes of what was handed to the compilers

    @property
    def takes_time(self) -> bool:
        """Whether a GPU measures, so that other work is done meanwhile."""
        return self._session.present and self._evaluator.measures

    def expect(self, candidates: Sequence[Candidate]) -> None:
        """Have candidates compiled that will be measured, in about this order."""
        kernels = [
            candidate.kernel
            for candidate in candidates
            if candidate.kernel.hash not in self._expected
            and normalised_source_hash(candidate.kernel.source) not in self._sources
        ]
        self._expected.update(kernel.hash for kernel in kernels)
        self._evaluator.expect(kernels)

    def measure(
        self,
        number: int,
        candidates: Sequence[Candidate],
        situations: Mapping[str | None, Situation],
    ) -> list[Attempt]:
        """Compile and judge candidates of a round; all but the duplicates become attempts.

        Args:
            number: of the round.
            situations: of the round, by the hash of the parent kernel: what an attempt answers and
                is compared with.

        Returns:
            The new attempts.
        """
        history, before = self._history, len(self._history.attempts)
        fresh = {
            candidate.kernel.hash: candidate for candidate in candidates if self._is_new(candidate)
        }
        if not fresh:
            return []
        # A resumed run compiles again what it has measured (the cache answers): which candidates
        # are duplicates or worth proving must come out as it did before.
        admitted = self._evaluator.admit([candidate.kernel for candidate in fresh.values()])
        for kernel, log in admitted.failed:
            if not history.take_over(kernel):
                failed = Measurement(
                    Status.BUILD_FAILED, None, estimated=not self._session.present, log=log
                )
                self._add_attempt(number, fresh[kernel.hash], failed, situations)
                self._announce("measure", _told(fresh[kernel.hash], failed))
        waiting = [kernel for kernel in admitted.ready if not history.take_over(kernel)]
        if waiting:
            self._announce("measure", f"judging {len(waiting)} candidates")
            judged = count(1)

            def on_result(index: int, measurement: Measurement) -> None:
                kernel = waiting[index]
                explained = self._explained(kernel, measurement)
                self._add_attempt(number, fresh[kernel.hash], explained, situations)
                told = _told(fresh[kernel.hash], explained)
                self._announce("measure", f"{next(judged)} of {len(waiting)}: {told}")

            by_recipes = frozenset(hash_ for hash_, each in fresh.items() if each.author == RECIPES)
            self._evaluator.screen(waiting, on_result, by_recipes=by_recipes)
        return history.attempts[before:]

    def verify(
        self, attempt: Attempt, baselines: Sequence[Baseline] | Awaited, *, early: bool = False
    ) -> Attempt:
        """Ask everything the judge has, in a fresh process, against the best baseline.

        What an earlier process of this run asked stands.

        Args:
            early: whether the search goes on afterwards.
        """
        history, kernel = self._history, attempt.candidate.kernel
        known = baselines.known() if isinstance(baselines, Awaited) else baselines
        measurement = self._find_verdict(kernel, known)
        if measurement is None:
            text = "verifying the fastest kernel in a fresh process"
            self._announce("measure", f"{text}, before the search goes on" if early else text)
            measurement = self._explained(kernel, self._evaluator.verify(kernel, baselines))
            verified = replace(attempt, measurement=measurement)
            self._recorder.record_verdict(verified, len(history.attempts), early=early)
        verified = replace(attempt, measurement=measurement)
        history.add_verdict(attempt, verified)
        if measurement.status is not Status.PASSED:
            reasons = measurement.log.strip().splitlines() or ["no reason given"]
            self._announce("measure", f"refused: {measurement.status.value}: {reasons[0]}")
        return verified

    def _find_verdict(self, kernel: Kernel, baselines: Sequence[Baseline]) -> Measurement | None:
        """What an earlier process found out, if it still stands against these baselines."""
        earlier, best = self._history.earlier.verdicts.get(kernel.hash), fastest_baseline(baselines)
        if earlier is None or earlier.measurement.status is Status.INTERRUPTED:
            return None
        timing = earlier.measurement.timing
        if timing is not None and best is not None and timing.reference not in (None, best.name):
            return None
        return earlier.measurement

    def profile(self, attempt: Attempt) -> Profile:
        """The profile of a kernel, by the best profiler that can run here; once per kernel and run.

        Raises ProfilerError: if none can.
        """
        kernel, profiles = attempt.candidate.kernel, self._history.profiles
        if kernel.hash not in profiles:
            self._announce("profile", f"profiling kernel {kernel.hash[:12]}")
            profiles[kernel.hash] = self._evaluator.profile(attempt)
            self._recorder.record_profile(attempt, profiles[kernel.hash])
        return profiles[kernel.hash]

    def _is_new(self, candidate: Candidate) -> bool:
        """Whether this run sees the candidate's program, however formatted, for the first time."""
        source = normalised_source_hash(candidate.kernel.source)
        is_new = source not in self._sources
        self._sources.add(source)
        return is_new

    def _explained(self, kernel: Kernel, measurement: Measurement) -> Measurement:
        """A refusal for accuracy also names the rung that is tried next."""
        error, session = near_miss(measurement), self._session
        if error is None or not kernel.choices:
            return measurement
        above = next_rungs(kernel, error, session.traced, session.recipes, session.rewrites)
        told = describe_climb(kernel.choices, above)
        return replace(measurement, log=f"{measurement.log.rstrip()}; {told}")

    def _add_attempt(
        self,
        number: int,
        candidate: Candidate,
        measurement: Measurement,
        situations: Mapping[str | None, Situation],
    ) -> None:
        """Put an attempt into the history and on the disk, the moment it exists."""
        history = self._history
        base = base_of(candidate.task, history.attempts)
        parent = history.find(base)
        diagnosis = situations[base].diagnosis if base in situations else None
        attempt = Attempt(
            number,
            candidate,
            measurement,
            parent.measurement.latency_ms if parent else None,
            diagnosis.bottleneck if diagnosis else None,
        )
        history.add_attempt(attempt)
        self._recorder.record_attempt(
            len(history.attempts), attempt, diagnosis.signature if diagnosis else None
        )
        baseline = fastest_baseline(history.baselines)
        if history.best is attempt and _is_faster(attempt, baseline):
            self._recorder.record_provisional(attempt, baseline)


def _told(candidate: Candidate, measurement: Measurement) -> str:
    return f"{candidate.task.skill}: {measurement.status.value}"


def _is_faster(attempt: Attempt, baseline: Baseline | None) -> bool:
    return baseline is None or attempt.measurement.latency_ms < baseline.timing.latency_ms


@lru_cache(maxsize=256)
def normalised_source_hash(source: str) -> str:
    """A hash over the syntax tree: comments, blank lines and formatting make no new candidate.

    A text that does not parse is hashed as it is; compiling reports it.
    """
    try:
        return content_hash(ast.dump(parse_python(source)))
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return content_hash(source)
