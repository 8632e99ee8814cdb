"""A measured win as a skill directory: SKILL.md filled from records, and the kernels of the win.

Nothing in it is invented: what was changed is the diff, what the change brought is the measurement,
and why it did is left to the reader. The name holds the fingerprint of the change, so that the same
knowledge distilled twice, here or elsewhere, is one draft. The text holds no time of writing: the
same records give the same bytes.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from kmem.curate.change import change_fingerprint, changed_lines, diff_sources
from kmem.curate.wins import Win
from kmem.errors import OutputError
from kmem.records import Attempt, Claim, Signature, Status
from kmem.skills import DRAFT
from kmem.vocabulary import SIGNATURE_METRICS

_FINGERPRINT_DIGITS = 12
#: Lines of the diff that go into the text itself, of the 150 lines that a body may have; the whole
#: diff is in references/.
_DIFF_LINES = 60
_MAX_CLAIMS = 4
_LINE_CHARACTERS = 240
#: A metric moved if it changed by this share of its value and this share of its scale. Source:
#: chosen; counters of two runs of one kernel differ by a few percent.
_MOVED_SHARE, _MOVED_SCALE = 0.10, 0.02
_UNSTATED_LICENCE = "LicenseRef-not-stated"


def draft_name(win: Win) -> str:
    """`learnt-<operator>-<fingerprint>`.

    The same change to the same kind of operator has the same name everywhere.
    """
    operator = (win.outcome.operators or ("opaque",))[0].replace("_", "-")
    return f"learnt-{operator}-{change_fingerprint(*win.kernels)[:_FINGERPRINT_DIGITS]}"


def draft_files(win: Win, licences: Mapping[str, str]) -> dict[str, str]:
    """The files of a draft, relative path -> text. `licences` are those stated, by contributor."""
    parent, child = win.kernels
    front = {
        "name": draft_name(win),
        "description": _description(win),
        "license": licences.get(win.outcome.origin, _UNSTATED_LICENCE),
        "metadata": _metadata(win),
    }
    header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=10_000)
    return {
        "SKILL.md": f"---\n{header}---\n{_body(win)}",
        "references/parent.py": parent.source,
        "references/child.py": child.source,
        "references/change.diff": diff_sources(parent, child),
        "references/outcomes.jsonl": "".join(f"{entry.record}\n" for entry in win.outcomes),
    }


def write_draft(directory: Path, files: Mapping[str, str]) -> None:
    """Write a draft's files.

    Raises:
        OutputError: if the directory cannot be written.
    """
    try:
        for relative, text in files.items():
            place = directory / relative
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as ex:
        raise OutputError(
            f"Directory {directory} cannot be written ({ex.strerror}); choose another with --out"
        ) from ex


def moved_metrics(before: Signature, after: Signature) -> list[tuple[str, float, float]]:
    """The metrics of both profiles that moved: (metric, before, after), furthest first."""
    distances: dict[tuple[str, float, float], float] = {}
    for metric, entry in SIGNATURE_METRICS.items():
        if metric in before.values and metric in after.values:
            old, new = before.values[metric], after.values[metric]
            if abs(new - old) >= max(_MOVED_SHARE * abs(old), _MOVED_SCALE * entry.scale):
                distances[metric, old, new] = abs(new - old) / entry.scale
    return sorted(distances, key=lambda moved: (-distances[moved], moved[0]))


def win_claims(win: Win) -> tuple[Claim, ...]:
    """What must be seen where the draft is used again: half of each change measured here.

    That is of the time, and of the metrics that moved.
    """
    claims = [Claim("speed_of_light", ">=", round((1.0 + win.effect.value) / 2, 3), relative=True)]
    if win.before is not None and win.after is not None:
        for metric, old, new in moved_metrics(
            win.before.diagnosis.signature, win.after.diagnosis.signature
        ):
            comparison = ">=" if new > old else "<="
            if metric == "speed_of_light":
                continue  # the time says it already
            if old > 0:
                claims.append(
                    Claim(metric, comparison, round((1.0 + new / old) / 2, 3), relative=True)
                )
            else:
                claims.append(Claim(metric, comparison, round((old + new) / 2, 3)))
    return tuple(claims[: _MAX_CLAIMS + 1])


def _triton_words(lines: Iterable[str]) -> set[str]:
    return set(re.findall(r"\btl\.\w+|\bnum_warps\b|\bnum_stages\b", "\n".join(lines)))


def _description(win: Win) -> str:
    removed, added = map(_triton_words, changed_lines(*win.kernels))
    gained, lost = sorted(added - removed), sorted(removed - added)
    words = [f"brings in {', '.join(gained[:6])}"] if gained else []
    words += [f"does without {', '.join(lost[:6])}"] if lost else []
    operators = " and ".join(win.outcome.operators[:3]).replace("_", " ")
    bottleneck = (
        f" limited by {win.child.bottleneck.value.replace('_', ' ')}"
        if win.child.bottleneck
        else ""
    )
    what = f" ({'; '.join(words)})" if words else ""
    return (
        f"A change{what} to a {operators} kernel "
        f"that measured {win.effect.value:.2f}x its parent's speed on one problem. "
        f"Use when a {operators} kernel on {win.outcome.arch}{bottleneck} "
        "is written like the parent in references/."
    )


def _metadata(win: Win) -> dict[str, str]:
    outcome = win.outcome
    found = {"kmem-ops": " ".join(outcome.operators) or "any"}
    if win.child.bottleneck is not None:
        found["kmem-bottlenecks"] = win.child.bottleneck.value
    if win.before is not None:
        conditions = [
            f"{item.metric} {item.comparison} {_plain_number(item.threshold)}"
            for item in win.before.diagnosis.evidence
        ]
        if conditions:
            found["kmem-signature"] = ", ".join(conditions)
    found["kmem-claims"] = ", ".join(map(str, win_claims(win)))
    found["kmem-arch"] = outcome.arch
    found["kmem-precision"] = outcome.contract.precision.value
    found["kmem-source"] = (
        f"run {win.run.id}; outcomes {' '.join(entry.hash for entry in win.outcomes)}"
    )
    found["kmem-status"] = DRAFT
    return found


def _plain_number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")  # what a condition may hold: no exponent


def _body(win: Win) -> str:
    sections = {
        "Mechanism": _mechanism(win),
        "Use when": _use_when(win),
        "Do not use when": _do_not_use_when(win),
        "In Triton": _in_triton(win),
        "Pitfalls": _pitfalls(win),
        "How to check it worked": _how_to_check(win),
    }
    return "\n".join(f"## {title}\n" + "\n".join(lines) + "\n" for title, lines in sections.items())


def _mechanism(win: Win) -> list[str]:
    parent, child = win.parent.measurement, win.child.measurement
    removed, added = changed_lines(*win.kernels)
    lines = [
        f"{len(removed)} lines of the parent were replaced by {len(added)} "
        "(references/change.diff). The time of one forward fell from "
        f"{parent.latency_ms:.4g} ms to {child.latency_ms:.4g} ms:",
        f"{win.effect}, {win.interval_source}.",
    ]
    if win.before is not None and win.after is not None:
        moved = moved_metrics(win.before.diagnosis.signature, win.after.diagnosis.signature)
        lines.append(
            "Between the two profiles these metrics moved:"
            if moved
            else "No metric of the two profiles moved beyond noise."
        )
        lines += [f"- `{metric}` from {old:.4g} to {new:.4g}" for metric, old, new in moved]
    else:
        lines.append(
            "Only one of the two kernels was profiled, or none: "
            "which resource it saves was not measured."
        )
    return [*lines, "Why it is faster has not been established."]


def _use_when(win: Win) -> list[str]:
    operators = ", ".join(win.outcome.operators) or "an operator"
    lines = [f"- The graph has {operators}, and the kernel holds what the diff takes away."]
    if win.before is not None:
        lines.append(f"- The diagnosis is like the parent's: {win.before.diagnosis.summary}")
    elif win.child.bottleneck is not None:
        lines.append(
            f"- The diagnosis is `{win.child.bottleneck.value}`, as it was for the parent."
        )
    return lines


def _do_not_use_when(win: Win) -> list[str]:
    outcome = win.outcome
    lines = [
        f"- The device is not {outcome.arch}, or accuracy must be better than the contract "
        f"`{outcome.contract.precision.value}`: it was measured on {outcome.device} under that "
        "contract only."
    ]
    if outcome.flags:
        lines.append(f"- The judge's flags rule it out: {', '.join(outcome.flags)}.")
    return lines


def _in_triton(win: Win) -> list[str]:
    diff = diff_sources(*win.kernels).splitlines()
    lines = ["```diff", *diff[:_DIFF_LINES], "```"]
    if len(diff) > _DIFF_LINES:
        lines.append(
            f"The first {_DIFF_LINES} of {len(diff)} lines; the whole is references/change.diff."
        )
    if win.skill != "unaided":
        lines.append(f"It was written with the skill `{win.skill}`.")
    said = [lesson for lesson in win.lessons if not lesson.checks]
    lines += [
        f"In its author's words, which nobody checked: {_first_line(lesson.text)}"
        for lesson in said
    ]
    return lines


def _pitfalls(win: Win) -> list[str]:
    lines = [
        f"- Another attempt in this direction: {_failure(attempt)}"
        for attempt in win.siblings
        if attempt.measurement.status not in (Status.PASSED, Status.INTERRUPTED)
    ]
    for check in (check for lesson in win.lessons for check in lesson.checks):
        if check.held is False:
            before, after = _number(check.before), _number(check.after)
            lines.append(f"- The claim `{check.claim}` did not hold: {before} became {after}.")
    slower = sum(attempt.measurement.status is Status.PASSED for attempt in win.siblings)
    if slower:
        lines.append(f"- {slower} other attempts in this direction passed and gained less.")
    return list(dict.fromkeys(lines))[:8] or [
        "- None was seen: nothing else was tried in this direction in that run."
    ]


def _number(value: float | None) -> str:
    return "an unknown value" if value is None else f"{value:.4g}"


def _failure(attempt: Attempt) -> str:
    log = _first_line(attempt.measurement.log)
    return attempt.measurement.status.value + (f": {log}" if log else "")


def _first_line(text: str) -> str:
    return "".join(text.strip().splitlines()[:1])[:_LINE_CHARACTERS]


def _how_to_check(win: Win) -> list[str]:
    outcome = win.outcome
    versions = ", ".join(f"{name} {version}" for name, version in sorted(outcome.versions.items()))
    return [
        "Half of what was measured, times the parent's value:",
        *(f"- `{claim}`" for claim in win_claims(win)),
        "",
        f"Measured in run {win.run.id} on {outcome.device} ({versions}), "
        f"problem graph {outcome.graph_hash[:12]}, seed {win.run.seed}, by {outcome.origin}.",
    ]
