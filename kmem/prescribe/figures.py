"""What the figures of a diagnosis leave for a claim to move, and for a condition to test."""

from collections.abc import Mapping

from kmem.records import Claim, Diagnosis
from kmem.vocabulary import BINARY_METRICS, SOURCE_FEATURES

#: What is read of a kernel's text or binary. Where one is not known there was none to read, which
#: says nothing for or against a skill that asks.
OF_THE_KERNEL = BINARY_METRICS | SOURCE_FEATURES.keys()
#: Of one register of a thread.
REGISTER_BYTES = 4.0
#: Beyond what no claim can move a figure: a share, and what is one at least.
_MOST = 100.0
_LEAST = {"traffic_ratio": 1.0, "launches": 1.0}


def known_figures(diagnosis: Diagnosis) -> Mapping[str, float]:
    """What conditions are held against: figures of the profile, and what the text has.

    How near the bound an estimated time is counts as unknown: an estimate takes a kernel to be as
    fast as its busiest unit.
    """
    known = with_wanted_registers(diagnosis.known)
    if diagnosis.estimated:
        known = {name: value for name, value in known.items() if name != "speed_of_light"}
    return known


def with_wanted_registers(known: Mapping[str, float]) -> Mapping[str, float]:
    """The figures with the registers that a thread wants: those it was given and what it spills.

    A compiler that is held to few registers (by many warps, by maxnreg) spills the others.
    """
    spilled = known.get("spill_bytes_per_thread", 0.0)
    if not spilled or "registers_per_thread" not in known:
        return known
    wanted = known["registers_per_thread"] + spilled / REGISTER_BYTES
    return {**known, "registers_per_thread": wanted}


def is_share_of_peak(metric: str) -> bool:
    """Whether a figure says how busy a unit is, which hangs on the kernel's time."""
    return metric.endswith(("_throughput_pct", "_pipe_pct"))


def can_move(claim: Claim, value: float) -> bool:
    """Whether a claim about a figure is neither fulfilled already nor beyond what it can be."""
    if not claim.relative:
        return value < claim.number if claim.comparison == ">=" else value > claim.number
    wanted = value * claim.number
    if claim.comparison == ">=":
        return not (claim.metric.endswith("_pct") and wanted > _MOST)
    return value > 0.0 and wanted >= _LEAST.get(claim.metric, 0.0)
