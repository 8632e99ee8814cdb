"""The run so far as sections of a prompt: attempts, lessons, vetoes, and a failed file.

They come from the run alone: neither a change of the base kernel nor an empty retrieval alters how
they read.
"""

from collections.abc import Sequence

from kmem.explore.models.answers.schema import issue_of, short_hash
from kmem.explore.models.knobs import current_settings
from kmem.explore.models.lessons import standing_lessons
from kmem.explore.models.prompts.excerpts import failing_lines
from kmem.explore.models.prompts.message import Section, Worth
from kmem.explore.models.prompts.rendering import (
    both_ends,
    describe_result,
    fenced,
    one_line,
    shrinking,
)
from kmem.interfaces import Situation
from kmem.records import Attempt, Kernel, Lesson, Measurement, Status

#: How many attempts, lessons and characters of a log are shown at most, and at each step of
#: trimming.
_ROWS = (60, 30, 15, 6)
_LESSONS = (20, 10, 4)
_LOG_CHARACTERS = (8000, 4000, 1500)
_ROUND_ATTEMPTS = (12, 6, 3)


def history_section(situation: Situation) -> Section:
    """Every attempt of the run so far, oldest first.

    Trimmed to the latest attempts and, of those before, the fastest.
    """
    history = situation.history
    texts = ("Nothing yet.",)
    if history:
        texts = shrinking(len(history), _ROWS, lambda rows: _history_table(history, rows))
    return Section("What this run has tried", texts, Worth.HISTORY)


def lessons_section(situation: Situation) -> Section:
    """What the run has learnt and still holds, with the claims behind it; trimmed to the latest."""
    lessons = standing_lessons(situation.lessons, situation.history)
    texts = shrinking(
        len(lessons), _LESSONS, lambda count: "\n".join(map(_lesson_line, lessons[-count:]))
    )
    return Section("What this run has learnt", texts, Worth.LESSONS)


def vetoes_section(situation: Situation) -> Section:
    """What is ruled out in this run, and why."""
    lines = []
    for veto in situation.vetoes:
        what = f"{veto.skill}: {one_line(veto.instruction)}" if veto.instruction else veto.skill
        where = f" from {short_hash(veto.parent)}" if veto.parent else ""
        lines.append(f"- {what}{where} (for {veto.author}): {one_line(veto.reason)}")
    return Section(
        "Ruled out",
        shrinking(len(lines), (20, 8), lambda count: "\n".join(lines[-count:])),
        Worth.VETOES,
    )


def failure_sections(failed: Attempt) -> list[Section]:
    """A failed file, its status and its log; of a long log the beginning and the end."""
    measurement, kernel = failed.measurement, failed.candidate.kernel
    issue = issue_of(measurement.status)
    log = measurement.log.strip() or measurement.status.value
    texts = shrinking(len(log), _LOG_CHARACTERS, lambda limit: fenced(both_ends(log, limit)))
    verdict = (
        f"Status: {measurement.status.value}. The issue to cure first: "
        f"{issue.value if issue else 'whatever the log shows'}."
    )
    return [
        Section(
            f"The failed file ({short_hash(kernel.hash)})",
            (fenced(kernel.source, "python"),),
            Worth.TASK,
        ),
        Section("Verdict", ("\n".join([verdict, *_error_table(measurement)]),), Worth.TASK),
        Section("Log", texts, Worth.LOG),
        Section(
            "The lines of the file that the log names",
            (fenced(where), "") if (where := failing_lines(failed)) else ("",),
            Worth.FAILURES,
        ),
    ]


def _error_table(measurement: Measurement) -> list[str]:
    """What the judge found on each family of inputs, in the order in which it went through them."""
    if not measurement.errors:
        return []
    rows = [
        "Relative errors against the module in float64; the last row is where it was refused:",
        "| inputs | its error | allowed | eager's error |",
        "|---|---|---|---|",
    ]
    return rows + [
        f"| {report.family} | {report.relative_error:.2e} | {report.allowed_error:.2e} "
        f"| {report.reference_error:.2e} |"
        for report in measurement.errors
    ]


def attempts_section(attempts: Sequence[Attempt], lessons: Sequence[Lesson]) -> Section:
    """The attempts of a round for the reflector: change, claim, what was found."""
    blocks = [_describe_attempt(attempt, lessons) for attempt in attempts]
    texts = shrinking(len(blocks), _ROUND_ATTEMPTS, lambda count: "\n\n".join(blocks[:count]))
    return Section("The attempts of this round", texts, Worth.HISTORY)


def _describe_attempt(attempt: Attempt, lessons: Sequence[Lesson]) -> str:
    task = attempt.candidate.task
    measurement = attempt.measurement
    kernel = attempt.candidate.kernel
    lines = [
        f"### {short_hash(kernel.hash)} ({task.move.value}, {task.skill})",
        one_line(task.instruction or task.reason, 1200),
    ]
    lines += [f"Claimed: {claim}" for claim in task.claims]
    lines += [
        _lesson_line(lesson)
        for lesson in lessons
        if (lesson.kernel, lesson.round) == (kernel.hash, attempt.round)
    ]
    lines.append(f"Found: {describe_result(attempt)}")
    if measurement.status is not Status.PASSED and measurement.log.strip():
        lines.append(fenced(both_ends(measurement.log.strip(), 1000)))
    return "\n".join(lines)


def _history_table(history: Sequence[Attempt], rows: int) -> str:
    """The last attempts, and of those before them the fastest, so that no success is forgotten."""
    places = list(range(len(history)))
    if len(places) > rows:
        recent = places[-(rows - rows // 3) :]
        passed = [
            place
            for place in places[: -len(recent)]
            if history[place].measurement.latency_ms is not None
        ]
        best = sorted(passed, key=lambda place: history[place].measurement.latency_ms or 0.0)[
            : rows // 3
        ]
        places = sorted(best) + recent
    lines = [
        "| # | round | kernel | from | by | move | skill | result | what |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_history_row(place + 1, history[place]) for place in places),
    ]
    if len(places) < len(history):
        lines.append(f"({len(history) - len(places)} more attempts are left out)")
    return "\n".join(lines)


def _history_row(number: int, attempt: Attempt) -> str:
    candidate = attempt.candidate
    task = attempt.candidate.task
    measurement = attempt.measurement
    kernel = candidate.kernel
    what = [one_line(task.instruction or task.reason), _settings(kernel)]
    if measurement.status is not Status.PASSED:
        what.append(one_line(measurement.telling_line))
    cells = [
        str(number),
        str(attempt.round),
        short_hash(kernel.hash),
        short_hash(kernel.parent) if kernel.parent else "-",
        candidate.author,
        task.move.value,
        task.skill,
        describe_result(attempt),
        "; ".join(filter(None, what)),
    ]
    return f"| {' | '.join(cells)} |"


def _settings(kernel: Kernel) -> str:
    if kernel.knob_space:
        pairs = sorted(current_settings(kernel.source, kernel.knob_space).items())
    else:
        pairs = [pair for choice in kernel.choices for pair in choice.knobs]
    return one_line(" ".join(f"{name}={value}" for name, value in pairs))


def _lesson_line(lesson: Lesson) -> str:
    checks = []
    for check in lesson.checks:
        verdict = {True: "held", False: "refuted", None: "unknown"}[check.held]
        checks.append(
            f"{check.claim}: {_number(check.before)} -> {_number(check.after)}, {verdict}"
        )
    found = f" [{'; '.join(checks)}]" if checks else ""
    return (
        f"- round {lesson.round}, {short_hash(lesson.kernel)}, {lesson.skill}: "
        f"{one_line(lesson.text, 600)}{found}"
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"
