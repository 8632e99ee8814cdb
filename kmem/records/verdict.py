"""What the judge says of a kernel: status, errors, times.

An attempt is a candidate with its verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kmem.records.diagnosis import Bottleneck
from kmem.records.plan import Candidate


class Status(Enum):
    """What became of a candidate. Only PASSED carries a latency."""

    PASSED = "passed"
    REFUSED_SOURCE = "refused_source"  # the source check found something no kernel needs
    BUILD_FAILED = "build_failed"  # does not import or does not compile
    CRASHED = "crashed"  # raised, exited or broke the GPU context
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    # number, shape, dtype or type of outputs, constructor, state_dict
    WRONG_CONTRACT = "wrong_contract"
    WRONG_VALUES = "wrong_values"  # error above the accuracy contract
    MUTATED_INPUT = "mutated_input"
    NOT_REPEATABLE = "not_repeatable"
    IMPURE = "impure"  # GPU time or operators outside what --purity allows
    IMPLAUSIBLE = "implausible"  # faster than the physical floor, or clocks disagree
    # the judge was stopped, or others held the GPU's memory; says nothing about the candidate
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Accuracy on one input family or of one buffer: relative errors of the kernel and of eager.

    Errors are against the float64 oracle. `excess` is the error over its allowance, of the whole
    output or of its worst row, or the share of elements that are lost beside their own size over
    what luck may lose; above 1 the kernel is refused. It is infinite where non-finite values stand
    in the wrong places.
    """

    family: str
    seed: int
    relative_error: float
    reference_error: float
    allowed_error: float
    excess: float = 0.0


#: Times whose slowest fifth takes so many times the quickest are a busy host's too. Source: 100
#: baselines of level 3 beside 15 other runs, 2026-11-28: 28 spread more, among them an eager of 7.7
#: ms that is one of 1.96 on a quiet host; and a kernel of 9.3 ms, a fifth of whose calls took 1.4.
STEADY_RATIO = 1.2


def is_steady(latency_ms_p20: float, latency_ms_p80: float) -> bool:
    """Whether times differ by no more than those of a quiet host do."""
    return latency_ms_p80 <= STEADY_RATIO * latency_ms_p20


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one forward takes, and how that compares with a reference.

    The reference was timed pair by pair in the same session. `ratio` is reference / candidate (a
    speedup), the median over pairs; the interval is a 95% bootstrap of that median.
    """

    latency_ms: float
    latency_ms_p20: float
    latency_ms_p80: float
    samples: int
    reference: str | None = None  # eager, compile, max_autotune, or a kernel hash
    reference_ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    host_us: float | None = None  # what the host takes to issue one forward
    # wall time of the first forward in a fresh process, after import and construction; Triton's
    # disk cache is as it was found: warm for a kernel that was screened, cold for a stranger's
    first_call_s: float | None = None
    back_to_back_ms: float | None = None  # wall time of one of many forwards without a pause
    reference_back_to_back_ms: float | None = None
    graph_ms: float | None = None  # of a CUDA graph of one forward; None if it was not captured
    reference_graph_ms: float | None = None  # the same of the reference

    @property
    def graph_ratio(self) -> float | None:
        """The speedup with both captured as CUDA graphs; None where one of them was not."""
        if self.graph_ms is None or self.reference_graph_ms is None:
            return None
        return self.reference_graph_ms / self.graph_ms

    @property
    def is_steady(self) -> bool:
        """Whether the samples are those of a quiet host; see `is_steady`."""
        return is_steady(self.latency_ms_p20, self.latency_ms_p80)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The judge's verdict on one kernel; it has a time if and only if the kernel passed.

    `estimated` says that there was no GPU: correctness comes from the interpreter on the small
    workload, and the latency from the compiled kernel's static profile.

    Raises ValueError: on construction, if a passed kernel has no timing or another has one.
    """

    status: Status
    timing: Timing | None
    estimated: bool
    errors: tuple[ErrorReport, ...] = ()
    flags: tuple[str, ...] = ()  # specialised, degenerate, algebraic, recalled, ...
    log: str = ""
    library_share: float | None = None  # share of GPU time in kernels not compiled from the file
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status is Status.PASSED) != (self.timing is not None):
            raise ValueError(
                f"status {self.status.value} with timing {self.timing}: a timing is set if and "
                f"only if passed"
            )

    @property
    def latency_ms(self) -> float | None:
        return self.timing.latency_ms if self.timing else None

    @property
    def telling_line(self) -> str:
        """The line of the log that says most: of a traceback the last, of a verdict the first."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        if not lines:
            return ""
        ends_in_traceback = self.status in (
            Status.BUILD_FAILED,
            Status.CRASHED,
            Status.OUT_OF_MEMORY,
        )
        return lines[-1] if ends_in_traceback else lines[0]


#: The ways to run the unmodified module that are timed, quickest to find out first.
BASELINES = ("eager", "compile", "max_autotune")


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way to run the unmodified module, timed by the judge (or estimated from the graph)."""

    name: str  # of BASELINES
    timing: Timing | None  # None if it failed; then `log` says why
    estimated: bool
    log: str = ""
    timed_out: bool = False  # whether it failed because its time was up


def fastest_baseline(baselines: Sequence[Baseline]) -> Baseline | None:
    """The baseline to beat; None if none ran."""
    timed = [
        (baseline.timing.latency_ms, baseline)
        for baseline in baselines
        if baseline.timing is not None
    ]
    return min(timed, key=lambda entry: entry[0], default=(math.inf, None))[1]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One candidate of a run and what became of it: the run's short-term memory."""

    round: int
    candidate: Candidate
    measurement: Measurement
    parent_ms: float | None
    bottleneck: Bottleneck | None = None  # of the diagnosis that the attempt answered

    @property
    def speedup(self) -> float | None:
        """Parent time over this attempt's time; None if either is missing."""
        if self.measurement.latency_ms is None or self.parent_ms is None:
            return None
        return self.parent_ms / self.measurement.latency_ms
