"""A diagnosis as text for people."""

from kmem.records import Diagnosis


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
    if diagnosis.secondary:
        lines.append(f"  also: {', '.join(item.value for item in diagnosis.secondary)}")
    if diagnosis.estimated:
        lines.append("  estimated: compiled, not run")
    return "\n".join(lines)
