"""Name what limits a kernel, by arithmetic: no language model is asked.

The signature is held against the bound and the rules' thresholds.
"""

import math
from collections.abc import Mapping, Sequence

from kmem.diagnose.rules import INFERRED, RULES, Rule
from kmem.diagnose.signature import hottest_launch, make_signature
from kmem.records import (
    Attempt,
    Bottleneck,
    Bound,
    Device,
    Diagnosis,
    Evidence,
    Profile,
    Signature,
    Status,
)

#: How many verified attempts at a bottleneck without a gain refute it for this run, and the gain
#: that counts. One attempt may be a poor try; the judge resolves 2%.
REFUTING_ATTEMPTS = 2
REAL_GAIN = 1.02
_TENSOR_UNITS = ("tf32", "bf16", "fp16")
#: The summary's phrase where no rule fires.
_NO_EVIDENCE = (
    "no counter and no time names what limits it; profile with counters, or give the problem for "
    "its bound"
)


def diagnose(
    profile: Profile,
    device: Device,
    bound: Bound | None,
    *,
    latency_ms: float | None,
    history: Sequence[Attempt] = (),
) -> Diagnosis:
    """Name the bottleneck of one forward.

    Args:
        profile: every launch with raw counters.
        bound: of the problem, None if it is not known; then only counters speak.
        latency_ms: of one forward as the judge timed it; None takes the sum of the profile's
            durations.
        history: this run's attempts: a bottleneck they refuted is named second.
    """
    signature = make_signature(profile, device, bound, host_ms=latency_ms)
    busy_ms = _busy_ms(profile)
    time_ms = latency_ms if latency_ms is not None else busy_ms
    facts = collect_facts(profile, signature, device, bound)
    fired = [(rule, evidence) for rule in RULES if (evidence := rule.evidence(facts)) is not None]
    if not fired:
        fired = [
            (rule, evidence) for rule in INFERRED if (evidence := rule.evidence(facts)) is not None
        ]
    refuted = refuted_bottlenecks(history)
    standing = [item for item in fired if item[0].bottleneck not in refuted] or fired
    rule, evidence = standing[0] if standing else (None, ())
    bottleneck = rule.bottleneck if rule else Bottleneck.UNKNOWN
    others = [other.bottleneck for other, _ in fired if other.bottleneck is not bottleneck]
    launch = hottest_launch(profile)
    hottest = launch.name if launch else None
    speed_of_light = headroom_ms = None
    if bound is not None and time_ms is not None:
        speed_of_light = bound.time_ms / time_ms if time_ms else None
        headroom_ms = max(0.0, time_ms - bound.time_ms)
    return Diagnosis(
        bottleneck=bottleneck,
        evidence=evidence,
        signature=signature,
        speed_of_light=speed_of_light,
        headroom_ms=headroom_ms,
        summary=_summarise(bottleneck, rule, evidence, time_ms, bound, hottest),
        hottest=hottest,
        secondary=tuple(dict.fromkeys(others)),
        estimated=profile.estimated,
    )


def collect_facts(
    profile: Profile, signature: Signature, device: Device, bound: Bound | None
) -> Mapping[str, float]:
    """The signature's metrics and the facts that rules.EXTRA_FACTS explains, as far as known."""
    facts = dict(signature.values)
    busy_ms = _busy_ms(profile)
    if busy_ms is not None:
        facts["mean_launch_us"] = 1e3 * busy_ms / len(profile.launches)
    if "waves" in facts and facts["waves"] >= 1.0:
        facts["tail_efficiency_pct"] = 100.0 * facts["waves"] / math.ceil(facts["waves"])
    if bound is not None and bound.time_ms > 0:
        tensor_s = sum(
            bound.flops.get(unit, 0.0) / device.peak_flops_per_s[unit] for unit in _TENSOR_UNITS
        )
        facts["bound_tensor_pct"] = min(100.0, 1e5 * tensor_s / bound.time_ms)
        facts["bound_bytes_pct"] = min(
            100.0, 1e5 * bound.bytes / device.dram_bytes_per_s / bound.time_ms
        )
    return facts


def refuted_bottlenecks(history: Sequence[Attempt]) -> frozenset[Bottleneck]:
    """Bottlenecks that this run's verified attempts answered without any gain.

    A failed candidate refutes nothing.
    """
    gains: dict[Bottleneck, list[float]] = {}
    for attempt in history:
        if (
            attempt.bottleneck is not None
            and attempt.measurement.status is Status.PASSED
            and attempt.speedup is not None
        ):
            gains.setdefault(attempt.bottleneck, []).append(attempt.speedup)
    return frozenset(
        bottleneck
        for bottleneck, speedups in gains.items()
        if bottleneck is not Bottleneck.AT_BOUND
        and len(speedups) >= REFUTING_ATTEMPTS
        and max(speedups) < REAL_GAIN
    )


def _busy_ms(profile: Profile) -> float | None:
    durations = [launch.duration_ms for launch in profile.launches]
    return sum(durations) if durations and None not in durations else None


def _summarise(
    bottleneck: Bottleneck,
    rule: Rule | None,
    evidence: Sequence[Evidence],
    time_ms: float | None,
    bound: Bound | None,
    hottest: str | None,
) -> str:
    phrase = rule.phrase if rule else _NO_EVIDENCE
    facts = ", ".join(
        f"{item.metric} {item.value:.3g} {item.comparison} {item.threshold:g}" for item in evidence
    )
    parts = [f"{bottleneck.value}: {phrase}"]
    if facts:
        parts.append(f"({facts})")
    if bound is not None and time_ms is not None:
        parts.append(
            f"at {time_ms:.4g} ms against a bound of {bound.time_ms:.4g} ms set by {bound.limiter}"
        )
    if hottest is not None:
        parts.append(f"in {hottest[:80]}")
    return " ".join(parts)
