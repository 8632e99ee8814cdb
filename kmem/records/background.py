"""What a run knows beside its own attempts, for whoever writes its kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kmem.records.diagnosis import Prescription
from kmem.records.kernel import Profile
from kmem.records.outcome import Recalled
from kmem.records.verdict import Baseline, Status


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that kernels written by language models met again and again in earlier runs."""

    status: Status
    text: str  # the telling line of the log, without names and numbers of one kernel
    count: int


@dataclass(frozen=True, slots=True)
class Background:
    """Times, versions, remembered kernels and common errors.

    Attributes:
        baselines: the unmodified module's times; empty until they are known.
        profile: of the kernel to go on from; None without one.
        recalled: remembered winners for this graph or a like one, best first.
        first_skills: skills for a first kernel, before anything was profiled, best first.
        versions: of torch and triton.
        faults: what models get wrong most often, most frequent first.
    """

    baselines: tuple[Baseline, ...] = ()
    profile: Profile | None = None
    recalled: tuple[Recalled, ...] = ()
    first_skills: tuple[Prescription, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
