"""What limits a kernel and what is offered: signature, diagnosis, prescriptions, claims."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kmem.records.identity import ABSENT_IF_NONE
from kmem.records.kernel import Structure


class Bottleneck(Enum):
    """Bottlenecks, named by what fixes them."""

    REDUNDANT_TRAFFIC = "redundant_traffic"
    UNCOALESCED = "uncoalesced"
    DRAM_BANDWIDTH = "dram_bandwidth"
    L2_OR_L1_BANDWIDTH = "l2_or_l1_bandwidth"
    TENSOR_CORE_IDLE = "tensor_core_idle"
    FMA_BOUND = "fma_bound"
    ISSUE_BOUND = "issue_bound"
    SPECIAL_FUNCTION_BOUND = "special_function_bound"
    LATENCY = "latency"
    LOW_PARALLELISM = "low_parallelism"
    REGISTER_SPILL = "register_spill"
    OCCUPANCY_LIMITED = "occupancy_limited"
    DIVERGENCE_OR_MASKING = "divergence_or_masking"
    LAUNCH_OVERHEAD = "launch_overhead"
    HOST_OVERHEAD = "host_overhead"
    ALGORITHMIC = "algorithmic"
    AT_BOUND = "at_bound"
    UNKNOWN = "unknown"  # no fact names any of the others


@dataclass(frozen=True, slots=True)
class Signature:
    """The dimensions of a profile that kernels are compared by.

    `values` are by metric (vocabulary.SIGNATURE_METRICS), in natural units; a metric that is absent
    is unknown. `derived` names those that nothing measured or read, which follow from others; None
    where there is none.
    """

    values: Mapping[str, float]
    derived: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a diagnosis: metric, value, and the threshold it crossed."""

    metric: str
    value: float
    comparison: str  # ">=" or "<="
    threshold: float


@dataclass(frozen=True, slots=True)
class Decider:
    """A figure that is not known, and the bottlenecks that it would name or rule out."""

    metric: str
    counters: tuple[str, ...]  # Nsight Compute's, from which it is read
    tells: tuple[Bottleneck, ...]


@dataclass(frozen=True, slots=True)
class LaunchShare:
    """One kernel of a forward: its share of the time, what limits it, the graph nodes it serves."""

    name: str
    duration_ms: float
    share: float
    bottleneck: Bottleneck
    serves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a kernel, by arithmetic.

    `headroom_ms` is the time that removing the bottleneck could save. `possible` are bottlenecks
    that the facts neither name nor rule out; where they name none, `tests` are what would tell.
    `operators` and `patterns` are those of the graph, where the profile knows them, `structure` is
    that of the kernel's text. `launches` has the kernels of a forward of several, longest first.
    """

    bottleneck: Bottleneck
    evidence: tuple[Evidence, ...]
    signature: Signature
    speed_of_light: float | None  # bound / time; None if no bound is known
    headroom_ms: float | None
    summary: str  # one sentence; this is what is embedded
    hottest: str | None  # name of the launch that takes most time
    secondary: tuple[Bottleneck, ...] = ()
    estimated: bool = False
    possible: tuple[Bottleneck, ...] = ()
    tests: tuple[Decider, ...] = ()
    operators: tuple[str, ...] = ()
    launches: tuple[LaunchShare, ...] = ()
    patterns: tuple[str, ...] | None = field(default=None, metadata=ABSENT_IF_NONE)
    structure: Structure | None = field(default=None, metadata=ABSENT_IF_NONE)

    @property
    def known(self) -> Mapping[str, float]:
        """What skills' conditions are held against: the signature, and what the text has."""
        features = self.structure.features if self.structure else {}
        return {**self.signature.values, **features}


@dataclass(frozen=True, slots=True)
class Claim:
    """What the next profile must show if a change did what it was for.

    A claim bounds one signature metric, so that the profile can refute it. With `relative`,
    `number` is a multiple of the parent's value ("traffic_ratio <= 0.7x"), otherwise it is the
    bound itself.
    """

    metric: str  # of vocabulary.SIGNATURE_METRICS
    comparison: str  # "<=" or ">="
    number: float
    relative: bool = False

    def __str__(self) -> str:
        return f"{self.metric} {self.comparison} {self.number:g}{'x' if self.relative else ''}"


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A claim beside what was measured.

    `held` is None where a value is unknown, or where the parent's fulfilled the claim already.
    """

    claim: Claim
    before: float | None
    after: float | None
    held: bool | None


@dataclass(frozen=True, slots=True)
class Prescription:
    """A skill offered for a diagnosis, with its score, why, and what it is predicted to do."""

    skill: str
    score: float
    reasons: tuple[str, ...]
    # what it had earned when a run was offered it, in a sentence
    record: str | None = field(default=None, metadata=ABSENT_IF_NONE)
    claims: tuple[Claim, ...] = ()  # what the next profile must show if it works
    # the time that it should save by its record, at most the headroom; None if either is unknown
    saves_ms: float | None = field(default=None, metadata=ABSENT_IF_NONE)
