"""A diagnosis as text for people."""

from kmem.records import Diagnosis, LaunchShare
from kmem.vocabulary import SIGNATURE_METRICS


def describe_diagnosis(diagnosis: Diagnosis) -> str:
    """A diagnosis as a few lines: the summary, then its evidence and what else was found."""
    lines = [diagnosis.summary]
    lines += [
        f"  {item.metric} = {item.value:.4g} ({item.comparison} {item.threshold:g})"
        for item in diagnosis.evidence
    ]
    if diagnosis.speed_of_light is not None and diagnosis.headroom_ms is not None:
        lines.append(
            f"  speed of light {diagnosis.speed_of_light:.1%}, headroom "
            f"{diagnosis.headroom_ms:.4g} ms"
        )
    lines.append(f"  {_known(diagnosis)}")
    lines += [
        f"  {launch.share:6.1%} {launch.duration_ms:.4g} ms {launch.bottleneck.value} in "
        f"{launch.name[:60]}{_served(launch)}"
        for launch in diagnosis.launches
    ]
    if diagnosis.possible:
        lines.append(f"  not ruled out: {', '.join(item.value for item in diagnosis.possible)}")
    lines += [
        f"  {test.metric} would tell: ncu --metrics {','.join(test.counters)}"
        for test in diagnosis.tests
    ]
    if diagnosis.secondary:
        lines.append(f"  also: {', '.join(item.value for item in diagnosis.secondary)}")
    if diagnosis.estimated:
        lines.append("  estimated: compiled, not run")
    return "\n".join(lines)


def _known(diagnosis: Diagnosis) -> str:
    """How many of the signature's dimensions are known, and which of them were derived."""
    signature = diagnosis.signature
    told = f"{len(signature.values)} of {len(SIGNATURE_METRICS)} dimensions known"
    if signature.derived:
        told += f", {len(signature.derived)} of them derived: {', '.join(signature.derived)}"
    return told


def _served(launch: LaunchShare) -> str:
    return f", for {', '.join(launch.serves)}" if launch.serves else ""
