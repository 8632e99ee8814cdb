"""What a run knows of itself: attempts, lessons, baselines, profiles. No input or output.

Every stage may look at it. evaluation/measuring.py and stages/reflect.py add to it what they find;
recorder.py keeps the same in memory and in the run directory.
"""

from kmem.diagnose.signature import make_signature
from kmem.problem.traced import TracedProblem
from kmem.records import (
    Attempt,
    Baseline,
    Kernel,
    Lesson,
    Measurement,
    Profile,
    Signature,
    Status,
)
from kmem.run.state.resume import EarlierWork


class History:
    """The short-term memory of a run.

    `attempts` and `lessons` are oldest first, `profiles` are by kernel hash, `baselines` are empty
    until they are known, `measurements` counts what the judge was asked: screenings and final
    verdicts. `verdicts` are the final verdicts on kernels that hold, and `refused` those that do
    not, by kernel hash.
    """

    def __init__(self, traced: TracedProblem, earlier: EarlierWork) -> None:
        """Nothing was tried yet.

        Args:
            earlier: what an earlier process of this run finished.
        """
        self._traced = traced
        self.earlier = earlier
        self.attempts: list[Attempt] = []
        self.lessons: list[Lesson] = []
        self.baselines: tuple[Baseline, ...] = ()
        self.profiles: dict[str, Profile] = dict(earlier.profiles)
        self.verdicts: dict[str, Measurement] = {}
        self.refused: set[str] = set()
        self.measurements = 0
        self._taken_over = 0

    @property
    def was_verified(self) -> bool:
        """Whether there is a final verdict on any kernel of this run."""
        return bool(self.verdicts or self.refused)

    @property
    def best(self) -> Attempt | None:
        """The fastest attempt that passed."""
        ranking = self.ranking()
        return ranking[0] if ranking else None

    @property
    def best_ms(self) -> float | None:
        """The time of the fastest attempt that passed, in ms."""
        return self.best.measurement.latency_ms if self.best else None

    @property
    def is_caught_up(self) -> bool:
        """Whether every attempt that earlier processes finished has come up again."""
        return self._taken_over >= len(self.earlier.attempts)

    def ranking(self) -> list[Attempt]:
        """Attempts that passed, fastest first."""
        passed = [
            attempt for attempt in self.attempts if attempt.measurement.status is Status.PASSED
        ]
        return sorted(passed, key=lambda attempt: attempt.measurement.latency_ms)

    def find(self, kernel_hash: str | None) -> Attempt | None:
        """The attempt of this run at a kernel."""
        return next(
            (attempt for attempt in self.attempts if attempt.candidate.kernel.hash == kernel_hash),
            None,
        )

    def signature(self, attempt: Attempt) -> Signature | None:
        """The signature of a kernel of this run, if it was profiled."""
        profile = self.profiles.get(attempt.candidate.kernel.hash)
        if profile is None:
            return None
        traced = self._traced
        return make_signature(
            profile, traced.device, traced.bound, host_ms=attempt.measurement.latency_ms
        )

    def add_attempt(self, attempt: Attempt) -> None:
        """Add an attempt; one that did not build was no measurement."""
        self.attempts.append(attempt)
        if attempt.measurement.status is not Status.BUILD_FAILED:
            self.measurements += 1

    def take_over(self, kernel: Kernel) -> bool:
        """Add the attempt at a kernel that an earlier process of this run finished.

        Returns:
            Whether there is one.
        """
        finished = self.earlier.attempts.get(kernel.hash)
        if finished is not None:
            self.add_attempt(finished)
            self._taken_over += 1
        return finished is not None

    def add_verdict(self, screened: Attempt, verified: Attempt) -> None:
        """Count a final verdict; an attempt that it refused is not ranked any more.

        One that was interrupted says nothing.
        """
        self.measurements += 1
        kernel_hash, status = verified.candidate.kernel.hash, verified.measurement.status
        if status is Status.PASSED:
            self.verdicts[kernel_hash] = verified.measurement
        elif status is not Status.INTERRUPTED:
            self.verdicts.pop(kernel_hash, None)
            self.refused.add(kernel_hash)
            self.attempts = [verified if each is screened else each for each in self.attempts]
