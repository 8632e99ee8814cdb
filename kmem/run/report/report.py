"""The report of a run: its first screen, then all that was tried, why, and what it brought."""

from collections.abc import Iterator
from pathlib import Path

from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.memory.runs.runs import RoundDiagnosis, Verdict
from kmem.records import Attempt, Baseline, Status, Timing
from kmem.run.directory import RunDirectory
from kmem.run.report.control import describe_control
from kmem.run.report.convergence import draw_convergence
from kmem.run.report.costs import count_wins, usd_per_win
from kmem.run.report.finished import FinishedRun, count_judged, why_not_tried
from kmem.run.report.first_screen import describe_knobs, render_first_screen
from kmem.run.report.outlook import describe_outlook

_USAGE_HEAD = (
    "| role | model | calls | input tokens | cached | output tokens | USD | wins | USD per win |",
    "|---|---|---|---|---|---|---|---|---|",
)
_ATTEMPTS_HEAD = (
    "| # | round | kernel | from | move | skill | knobs | status | ms | vs parent | why |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)

#: Of the judge's reason: it names the family, the error, what is allowed and the rung tried next.
_REASON_CHARACTERS = 240


def write_report(directory: RunDirectory, finished: FinishedRun) -> Path:
    """Write convergence.png and report.md; returns the report's path."""
    place = directory.root / "convergence.png"
    plotted = draw_convergence(place, finished.result, finished.attempts)
    return directory.write_text("report.md", render_report(finished, plotted=plotted))


def render_report(finished: FinishedRun, *, plotted: bool) -> str:
    """The report as Markdown."""
    result = finished.result
    lines = [*render_first_screen(finished), "", "## The run", "", *_facts(finished)]
    lines += [f"- note: {note}" for note in finished.notes]
    if plotted:
        caption = "Best time after each measurement, with baselines and bound"
        lines += ["", f"![{caption}](convergence.png)"]
    lines += ["", "## Baselines", "", "| baseline | ms | p20-p80 |", "|---|---|---|"]
    lines += [_baseline_row(baseline) for baseline in result.baselines]
    lines += ["", "## Diagnoses", *_diagnoses(finished)]
    if finished.lessons:
        lines += ["", "## Lessons", ""]
        lines += [
            f"- round {lesson.round}, kernel `{lesson.kernel[:12]}`: {lesson.text}"
            for lesson in finished.lessons
        ]
    if finished.usage:
        lines += ["", "## Language models", "", *_USAGE_HEAD]
        wins = count_wins(finished.attempts)
        lines += [_usage_row(row, wins.get(row.role)) for row in finished.usage]
        lines += [_usage_row(total_usage(finished.usage), sum(wins.values()))]
        lines += [
            "",
            "A win is a kernel that passed and was faster than what it started from; a first "
            "kernel starts from nothing.",
        ]
    lines += ["", "## Attempts", "", *_ATTEMPTS_HEAD]
    lines += [
        _attempt_row(number, each, finished.verdicts.get(each.candidate.kernel.hash))
        for number, each in enumerate(finished.attempts, 1)
    ]
    lines += ["", "## What is left", ""]
    lines += describe_outlook(result, finished.attempts, finished.diagnoses, finished.verdicts)
    return "\n".join(lines) + "\n"


def _facts(finished: FinishedRun) -> list[str]:
    run, result = finished.run, finished.result
    contract = run.contract
    lines = [
        f"- run `{run.id}`, precision `{contract.precision.value}`, "
        f"purity `{contract.purity.value}`, seed {run.seed}",
        f"- authors {', '.join(run.authors)}; strategy {run.strategy.value}",
        f"- {result.measurements} measurements in {result.seconds:.0f} s: {count_judged(finished)}",
    ]
    control = describe_control(run.strategy, finished.attempts)
    if control is not None:
        lines.append(f"- {control}")
    host = host_line(result.best.measurement.timing) if result.best else None
    if host is not None:
        lines.append(f"- {host}")
    bound = result.bound
    if bound is not None:
        flops = [f"{value / 1e9:.4g} G {unit}" for unit, value in bound.flops.items() if value]
        work = f"{bound.bytes / 1e6:.4g} MB; {', '.join(flops) or 'no counted arithmetic'}"
        lines.append(f"- bound: {bound.time_ms:.4g} ms, limited by {bound.limiter} ({work})")
    return lines


def host_line(timing: Timing) -> str | None:
    """What the host takes for the winner, and whether the win outlasts that; None if unmeasured."""
    if timing.host_us is None or timing.back_to_back_ms is None:
        return None
    text = (
        f"host: {timing.host_us:.0f} us a call; calls one after another take "
        f"{timing.back_to_back_ms:.4g} ms each"
    )
    if timing.first_call_s is not None:
        text = f"first call: {timing.first_call_s:.2g} s; {text}"
    reference_ms = timing.reference_back_to_back_ms
    if reference_ms is not None:
        text += f", those of {timing.reference} {reference_ms:.4g} ms"
    if timing.graph_ms is not None:
        text += f"; captured as a CUDA graph {timing.graph_ms:.4g} ms"
        if timing.graph_ratio is not None:
            text += (
                f", {timing.reference} captured alike {timing.reference_graph_ms:.4g} ms: "
                f"{timing.graph_ratio:.2f}x"
            )
    is_lost = reference_ms is not None and timing.back_to_back_ms >= reference_ms
    if is_lost and timing.ratio is not None and timing.ratio > 1:
        held = "only under CUDA graphs" if timing.graph_ms is not None else "on the device alone"
        text += f". This win holds {held}: without, the host takes it back"
    return text


def _diagnoses(finished: FinishedRun) -> Iterator[str]:
    """Every diagnosis once, with the rounds that it held in, and what became of what it offered."""
    if not finished.diagnoses:
        yield from ("", "None: the run ended with its first round.")
    rounds: dict[tuple[str, str, tuple[str, ...]], list[RoundDiagnosis]] = {}
    for entry in finished.diagnoses:
        offered = tuple(prescription.skill for prescription in entry.prescriptions)
        rounds.setdefault((entry.kernel, entry.diagnosis.summary, offered), []).append(entry)
    for (kernel, summary, _), entries in rounds.items():
        numbers = ", ".join(str(entry.round) for entry in entries)
        yield from ("", f"### Round {numbers}, kernel `{kernel[:12]}`", "", f"{summary}", "")
        yield from (
            f"- {prescription.skill}: {_became(finished, prescription.skill)}. Offered because: "
            f"{', '.join(prescription.reasons)}"
            for prescription in entries[-1].prescriptions
        )
        if not entries[-1].prescriptions:
            yield "Nothing was offered."


def _became(finished: FinishedRun, skill: str) -> str:
    """What came of a skill that was offered."""
    own = [attempt for attempt in finished.attempts if attempt.candidate.task.skill == skill]
    if not own:
        return f"not tried: {why_not_tried(finished, skill)}"
    times = [each.measurement.latency_ms for each in own if each.measurement.latency_ms is not None]
    best = f", the fastest {min(times):.4g} ms" if times else ", none passed"
    return f"tried, {len(own)} attempt{'s' if len(own) > 1 else ''}{best}"


def _baseline_row(baseline: Baseline) -> str:
    if baseline.timing is None:
        why = baseline.log.splitlines()[-1] if baseline.log else ""
        what = "timed out" if baseline.timed_out else "failed"
        return f"| {baseline.name} | {what} | {why} |"
    timing = baseline.timing
    if baseline.estimated:
        return f"| {baseline.name} | {timing.latency_ms:.4g} (estimated) | |"
    return (
        f"| {baseline.name} | {timing.latency_ms:.4g} | "
        f"{timing.latency_ms_p20:.4g}-{timing.latency_ms_p80:.4g} |"
    )


def _usage_row(row: Usage, wins: int | None) -> str:
    uncounted = f" ({row.uncounted} without counts)" if row.uncounted else ""
    usd = f"{row.usd:.4f}" if row.usd is not None else "price unknown"
    each = usd_per_win(row.usd, wins or 0)
    return (
        f"| {row.role} | {row.model} | {row.calls}{uncounted} | {row.input_tokens} | "
        f"{row.cached_tokens} | {row.output_tokens} | {usd} | {'' if wins is None else wins} | "
        f"{f'{each:.4f}' if each is not None else ''} |"
    )


def _attempt_row(number: int, attempt: Attempt, verdict: Verdict | None) -> str:
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    measurement = attempt.measurement
    knobs = "; ".join(
        f"`{choice.site}` {describe_knobs(choice)}"
        if len(kernel.choices) > 1
        else describe_knobs(choice)
        for choice in kernel.choices
    )
    time = ""
    if measurement.latency_ms is not None:
        time = f"{measurement.latency_ms:.4g}{' est.' if measurement.estimated else ''}"
    status, why = measurement.status.value, task.reason
    final = verdict.measurement if verdict is not None else measurement
    if verdict is not None:
        is_upheld = final.status is Status.PASSED
        status = "verified" if is_upheld else f"passed, at the end {final.status.value}"
    if final.status is not Status.PASSED and final.log:
        why += f" -- {final.log.strip().splitlines()[-1][:_REASON_CHARACTERS]}"
    cells = (
        number,
        attempt.round,
        f"`{kernel.hash[:12]}`",
        f"`{kernel.parent[:12]}`" if kernel.parent else "",
        task.move.value,
        task.skill,
        knobs,
        status,
        time,
        f"{attempt.speedup:.2f}x" if attempt.speedup is not None else "",
        why.replace("|", "/"),
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"
