"""What became of one problem: how its process ended, and the row that says so."""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from kmem.bench.problems import BenchProblem, problem_key
from kmem.errors import NO_ROOM, RUN_AGAIN

#: Exit codes of `kmem optimize`: a kernel won, or nothing beat the best baseline; an error in one
#: line, or wrong usage.
_EXITS_WITH_RESULT, _EXITS_WITH_ERROR = (0, 3), (1, 2)


class RowStatus(Enum):
    """What became of a problem; the last three are failures of kmem or of the problem file."""

    PASSED = "passed"
    BASELINE_IS_BEST = "baseline_is_best"
    REFUSED = "refused"  # kmem said in one line what the user can mend
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process of `kmem optimize` ended; `code` is negative for a signal."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One problem's outcome.

    `result` is what `kmem optimize --json` printed, set if and only if the problem did not fail.

    Raises:
        ValueError: on construction otherwise.
    """

    problem: str
    source_hash: str
    status: RowStatus
    seconds: float
    finished_at: str  # ISO 8601, UTC
    reason: str = ""  # of a failure, in one line
    result: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if (self.result is None) != self.failed:
            raise ValueError(
                f"status {self.status.value} with result {self.result}: a result is set if and "
                "only if nothing failed"
            )

    @property
    def key(self) -> str:
        """The key of the problem."""
        return problem_key(self.problem, self.source_hash)

    @property
    def failed(self) -> bool:
        return self.status not in (RowStatus.PASSED, RowStatus.BASELINE_IS_BEST)

    @property
    def lacked_room(self) -> bool:
        """Whether the device memory did not suffice, perhaps because others use the device."""
        return self.status is RowStatus.REFUSED and NO_ROOM in self.reason

    @property
    def may_pass(self) -> bool:
        """Whether the problem may go another way when it is run once more, alone.

        It crashed, lost a process or found no room, as things do where memory is short.
        """
        return (
            self.lacked_room
            or self.status is RowStatus.CRASHED
            or (self.status is RowStatus.REFUSED and RUN_AGAIN in self.reason)
        )

    @property
    def speedup(self) -> float | None:
        """Best baseline over the verified kernel; None where one of the two is missing."""
        return self.result["speedup"] if self.status is RowStatus.PASSED else None

    @property
    def ratio(self) -> float:
        """What the means are made of: the speedup, or 1.0 where the module stays as it is."""
        return self.speedup or 1.0

    @property
    def baselines_ms(self) -> Mapping[str, float]:
        return self.result["baselines_ms"] if self.result else {}

    @property
    def best_baseline(self) -> str | None:
        return min(self.baselines_ms, key=self.baselines_ms.__getitem__, default=None)

    @property
    def best_baseline_ms(self) -> float | None:
        """Time of the best baseline, as paired with the kernel that passed, else as timed alone.

        The speedup is made of the paired time.
        """
        paired = self.result.get("paired_baseline_ms") if self.result else None
        return paired or (self.baselines_ms[self.best_baseline] if self.best_baseline else None)

    @property
    def captured_ratio(self) -> float | None:
        """The speedup with both captured as CUDA graphs; None where that was not timed."""
        return self.result.get("captured_speedup") if self.result else None

    @property
    def unverified_faster(self) -> int:
        """Candidates that were timed faster than the answer and have no final verdict."""
        return self.result.get("unverified_faster", 0) if self.result else 0

    @property
    def measurements(self) -> int | None:
        """What its run asked of the judge; None where it failed."""
        return self.result.get("measurements") if self.result else None

    @property
    def usd(self) -> float | None:
        """What its language models cost; None without any, or where a price is unknown."""
        usage = self.result.get("usage") if self.result else None
        return usage[-1]["usd"] if usage and usage[-1]["calls"] else None

    @property
    def bound_ms(self) -> float | None:
        return self.result["bound_ms"] if self.result else None

    @property
    def time_ms(self) -> float | None:
        """The time of the answer: the kernel's, or the best baseline's where that is the answer."""
        if self.status is RowStatus.PASSED:
            return self.result["latency_ms"]
        return self.baselines_ms[self.best_baseline] if self.best_baseline else None

    @property
    def bound_fraction(self) -> float | None:
        return self.bound_ms / self.time_ms if self.bound_ms and self.time_ms else None


def make_row(problem: BenchProblem, ended: Exit, *, measured: bool) -> Row:
    """What a process's end says about its problem.

    Args:
        measured: that the bench runs on a GPU, so that an estimate is a failure and not a result.
    """
    row = Row(
        problem.name,
        problem.source_hash,
        RowStatus.CRASHED,
        round(ended.seconds, 1),
        datetime.now(UTC).isoformat(timespec="seconds"),
        _reason(ended),
        None,
    )
    if ended.timed_out:
        return replace(
            row, status=RowStatus.TIMED_OUT, reason=f"no answer within {ended.seconds:.0f} s"
        )
    result = _last_object(ended.stdout) if ended.code in _EXITS_WITH_RESULT else None
    if result is not None and result["estimated"] is measured:
        return replace(
            row,
            reason=(
                f"it was {'estimated' if measured else 'measured'}, unlike the others: the GPU "
                "came or went"
            ),
        )
    if result is not None:
        return replace(row, status=RowStatus(result["status"]), reason="", result=result)
    if ended.code in _EXITS_WITH_ERROR and row.reason.startswith("Error: "):
        return replace(row, status=RowStatus.REFUSED, reason=row.reason.removeprefix("Error: "))
    return row


def _last_object(stdout: str) -> dict[str, object] | None:
    """The JSON object on the last line; a problem file may print lines of its own before it."""
    try:
        found = json.loads(stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _reason(ended: Exit) -> str:
    if ended.code < 0:
        return f"killed by signal {-ended.code} ({signal.strsignal(-ended.code)})"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("Error: ")]
    return (errors or lines or [f"exit code {ended.code} without a word"])[-1]
