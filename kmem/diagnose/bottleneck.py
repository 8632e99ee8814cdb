"""Name what limits a kernel, by arithmetic: no language model is asked.

The signature is held against the bound and the rules' thresholds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmem.counters import counters_of_metric, read_quantities
from kmem.diagnose.inferred import INFERRED
from kmem.diagnose.rule import Rule
from kmem.diagnose.rules import RULES
from kmem.diagnose.signature import hottest_launch, least_dram_bytes, make_signature
from kmem.records import (
    Attempt,
    Bottleneck,
    Bound,
    Decider,
    Device,
    Diagnosis,
    LaunchShare,
    Profile,
    Signature,
    Status,
)

#: How many verified attempts at a bottleneck without a gain refute it for this run, and the gain
#: that counts. One attempt may be a poor try; the judge resolves 2%.
REFUTING_ATTEMPTS = 2
REAL_GAIN = 1.02
_TENSOR_UNITS = ("tf32", "bf16", "fp16")
#: How many figures are named that would tell where the facts name no bottleneck.
TESTS = 2
#: The figures of the unit that a bound is set by; every other unit is one of the tensor cores.
_OF_LIMITER = {
    "bytes": ("dram_throughput_pct", "traffic_ratio", "memory_stall_pct", "sector_efficiency_pct"),
    "fp32": ("fma_pipe_pct", "work_ratio", "sm_throughput_pct"),
    "special": ("xu_pipe_pct", "sm_throughput_pct"),
}
#: What is told of the hottest launch alone.
_OF_HOTTEST = ("masked_out_pct", "bytes_in_flight_pct")
_OF_TENSOR_CORES = ("tensor_pipe_pct", "barrier_stall_pct", "memory_stall_pct")
#: The summary's phrase where no rule fires, and where not even one could.
_CANNOT_TELL = "no counter and no time names what limits it"
_NO_EVIDENCE = f"{_CANNOT_TELL}; give the problem for its bound"


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
    fired = [
        (rule, evidence)
        for rule in RULES
        if (evidence := rule.evidence(facts)) is not None and not _is_circular(rule, profile)
    ]
    if not fired:
        fired = [
            (rule, evidence) for rule in INFERRED if (evidence := rule.evidence(facts)) is not None
        ]
    possible = _possible(facts)
    limiter = bound.limiter if bound else None
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
    found = Diagnosis(
        bottleneck=bottleneck,
        evidence=evidence,
        signature=signature,
        speed_of_light=speed_of_light,
        headroom_ms=headroom_ms,
        summary="",
        hottest=hottest,
        secondary=tuple(dict.fromkeys(others)),
        estimated=profile.estimated,
        possible=tuple(
            each
            for each in dict.fromkeys(rule.bottleneck for rule, _ in possible)
            if each is not bottleneck and each not in others
        ),
        tests=() if fired else _tests(possible, limiter),
        operators=profile.operators or (),
        patterns=profile.patterns,
        structure=profile.structure,
        launches=_launch_shares(profile, device),
    )
    served = launch.serves if launch and launch.serves else ()
    return replace(found, summary=_summarise(found, rule, time_ms, bound, served))


def collect_facts(
    profile: Profile, signature: Signature, device: Device, bound: Bound | None
) -> Mapping[str, float]:
    """The signature's metrics and the facts that rule.EXTRA_FACTS explains, as far as known."""
    facts = dict(signature.values)
    busy_ms = _busy_ms(profile)
    if "dram_throughput_pct" in facts and not profile.estimated:
        facts["measured_dram_pct"] = facts["dram_throughput_pct"]
    if profile.estimated and {"dram_throughput_pct", "sm_throughput_pct"} <= facts.keys():
        facts["sm_over_dram_pct"] = facts["sm_throughput_pct"] - facts["dram_throughput_pct"]
    launch = hottest_launch(profile)
    quantities = read_quantities(launch.metrics) if launch else {}
    facts |= {name: quantities[name] for name in _OF_HOTTEST if name in quantities}
    if launch is not None and launch.block and "static__program_load_bytes" in launch.metrics:
        threads = math.prod(launch.block)
        facts["loaded_by_thread"] = launch.metrics["static__program_load_bytes"] / threads
    if launch is not None and launch.metrics.get("static__loop_tensor_flops"):
        facts["product_stages"] = launch.metrics["static__num_stages"]
    if busy_ms is not None:
        facts["mean_launch_us"] = 1e3 * busy_ms / len(profile.launches)
        least_bytes = least_dram_bytes(profile)
        if least_bytes is not None and busy_ms > 0:
            facts["least_dram_pct"] = min(
                100.0, 1e5 * least_bytes / device.dram_bytes_per_s / busy_ms
            )
    if "waves" in facts and facts["waves"] >= 1.0:
        facts["tail_efficiency_pct"] = 100.0 * facts["waves"] / math.ceil(facts["waves"])
    if bound is not None and bound.time_ms > 0:
        tensor_s = sum(
            bound.flops.get(unit, 0.0) / device.peak_flops_per_s[unit] for unit in _TENSOR_UNITS
        )
        least_bytes = least_dram_bytes(profile)
        if least_bytes is not None and bound.bytes:
            facts["least_traffic_ratio"] = least_bytes / bound.bytes
        facts["bound_tensor_pct"] = min(100.0, 1e5 * tensor_s / bound.time_ms)
        products = sum(bound.flops.get(unit, 0.0) for unit in _TENSOR_UNITS)
        facts["bound_fma_ratio"] = 1e3 * products / device.peak_flops_per_s["fp32"] / bound.time_ms
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


def _is_circular(rule: Rule, profile: Profile) -> bool:
    """Whether a rule concludes from an estimated time what the estimate takes for granted.

    A kernel is estimated at the speed of the unit that it keeps busiest.
    """
    return profile.estimated and rule.bottleneck is Bottleneck.AT_BOUND


def _possible(facts: Mapping[str, float]) -> list[tuple[Rule, tuple[str, ...]]]:
    """The rules that the facts do not rule out, each with the facts that it lacks."""
    lacking = [(rule, rule.lacks(facts)) for rule in RULES]
    return [(rule, metrics) for rule, metrics in lacking if metrics]


def _tests(
    possible: Sequence[tuple[Rule, tuple[str, ...]]], limiter: str | None
) -> tuple[Decider, ...]:
    """The few counted figures that would tell most.

    First come those of the unit that the bound is set by, then those that speak of the most
    bottlenecks, of equals the most telling.
    """
    own = _OF_LIMITER.get(limiter or "", _OF_TENSOR_CORES if limiter else ())
    told: dict[str, dict[Bottleneck, None]] = {}
    for rule, metrics in possible:
        for metric in metrics:
            told.setdefault(metric, {})[rule.bottleneck] = None
    tests = [
        Decider(metric, counters, tuple(bottlenecks))
        for metric, bottlenecks in told.items()
        if (counters := counters_of_metric(metric))
    ]
    return tuple(sorted(tests, key=lambda test: (test.metric not in own, -len(test.tells)))[:TESTS])


def _launch_shares(profile: Profile, device: Device) -> tuple[LaunchShare, ...]:
    """The kernels of a forward, longest first; none for a single one or without their times.

    Each is diagnosed on its own, without the bound, which is that of the whole forward.
    """
    busy_ms = _busy_ms(profile)
    if len(profile.launches) < 2 or not busy_ms:
        return ()
    shares = []
    for launch in profile.launches:
        alone = replace(profile, launches=(launch,), bound=None)
        facts = collect_facts(alone, make_signature(alone, device, None), device, None)
        rules = (rule for rule in (*RULES, *INFERRED) if rule.evidence(facts) is not None)
        rule = next(rules, None)
        duration_ms = launch.duration_ms or 0.0
        shares.append(
            LaunchShare(
                launch.name,
                duration_ms,
                duration_ms / busy_ms,
                rule.bottleneck if rule else Bottleneck.UNKNOWN,
                launch.serves or (),
            )
        )
    return tuple(sorted(shares, key=lambda share: -share.duration_ms))


def _summarise(
    found: Diagnosis,
    rule: Rule | None,
    time_ms: float | None,
    bound: Bound | None,
    served: Sequence[str],
) -> str:
    facts = ", ".join(
        f"{item.metric} {item.value:.3g} {item.comparison} {item.threshold:g}"
        for item in found.evidence
    )
    parts = [f"{found.bottleneck.value}: {rule.phrase if rule else _cannot_tell(found)}"]
    if facts:
        parts.append(f"({facts})")
    if bound is not None and time_ms is not None:
        parts.append(
            f"at {time_ms:.4g} ms against a bound of {bound.time_ms:.4g} ms set by {bound.limiter}"
        )
    if found.hottest is not None:
        parts.append(f"in {found.hottest[:80]}")
    if served:
        parts.append(f"which serves {', '.join(served)}")
    return " ".join(parts)


def _cannot_tell(found: Diagnosis) -> str:
    """What is said where no rule fires: the figures that would tell, and of what."""
    if not found.tests:
        return _NO_EVIDENCE
    tests = " and ".join(
        f"{test.metric} ({', '.join(each.value for each in test.tells)})" for test in found.tests
    )
    return f"{_CANNOT_TELL}; counting these would: {tests};"
