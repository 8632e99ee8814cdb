"""The report of a run and its plot: what was tried, why, and what it brought.

report.md names every attempt with its reason; convergence.png shows the best time after each
measurement, with baselines and bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.records import (
    Attempt,
    Baseline,
    Lesson,
    Run,
    RunResult,
    Status,
    Timing,
    fastest_baseline,
)
from kmem.run.directory import RunDirectory

_USAGE_HEAD = (
    "| role | model | calls | input tokens | output tokens | USD |",
    "|---|---|---|---|---|---|",
)
_ATTEMPTS_HEAD = (
    "| # | round | kernel | from | move | skill | knobs | status | ms | vs parent | why |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a report tells: what the run was asked, what it tried and learnt, what came of it."""

    run: Run
    result: RunResult
    attempts: Sequence[Attempt]
    diagnoses: Sequence[RoundDiagnosis] = ()
    lessons: Sequence[Lesson] = ()
    notes: Sequence[str] = ()  # what the user should know of how the run went
    usage: Sequence[Usage] = ()  # of language models


def write_report(directory: RunDirectory, finished: FinishedRun) -> Path:
    """Write convergence.png and report.md; returns the report's path."""
    place = directory.root / "convergence.png"
    plotted = draw_convergence(place, finished.result, finished.attempts)
    return directory.write_text("report.md", render_report(finished, plotted=plotted))


def summarise(result: RunResult) -> str:
    """The outcome in one sentence, estimates named as such."""
    label = "estimated " if result.estimated else ""
    if result.best is None:
        fastest = fastest_baseline(result.baselines)
        name, time = (
            (fastest.name, f" at {label}{fastest.timing.latency_ms:.4g} ms")
            if fastest
            else ("the module as it is", "")
        )
        return (
            f"No kernel beat the best baseline on {result.target}: the answer is {name}{time} "
            f"({result.reason})."
        )
    timing = result.best.measurement.timing
    text = f"{label}{timing.latency_ms:.4g} ms on {result.target}"
    if result.speedup is not None:
        against = timing.reference or "the estimate for eager"
        text += f", {result.speedup:.2f}x {against}"
        if timing.ratio_low is not None:
            text += f" (95% interval {timing.ratio_low:.2f}-{timing.ratio_high:.2f})"
    if result.speed_of_light is not None:
        text += f", {result.speed_of_light:.0%} of the speed of light"
    if result.recalled:
        text += ", recalled from memory: no new gain"
    return text[0].upper() + text[1:] + "."


def render_report(finished: FinishedRun, *, plotted: bool) -> str:
    """The report as Markdown."""
    run, result = finished.run, finished.result
    lines = [f"# {run.problem.name} on {result.target}", "", summarise(result), ""]
    lines += _facts(run, result)
    lines += [f"- note: {note}" for note in finished.notes]
    if plotted:
        caption = "Best time after each measurement, with baselines and bound"
        lines += ["", f"![{caption}](convergence.png)"]
    lines += ["", "## Baselines", "", "| baseline | ms | p20-p80 |", "|---|---|---|"]
    lines += [_baseline_row(baseline) for baseline in result.baselines]
    lines += ["", "## Diagnoses", ""]
    lines += [_diagnosis_line(entry) for entry in finished.diagnoses]
    if finished.lessons:
        lines += ["", "## Lessons", ""]
        lines += [
            f"- round {lesson.round}, kernel `{lesson.kernel[:12]}`: {lesson.text}"
            for lesson in finished.lessons
        ]
    if finished.usage:
        lines += ["", "## Language models", "", *_USAGE_HEAD]
        lines += [_usage_row(row) for row in (*finished.usage, total_usage(finished.usage))]
    lines += ["", "## Attempts", "", *_ATTEMPTS_HEAD]
    lines += [_attempt_row(number, each) for number, each in enumerate(finished.attempts, 1)]
    return "\n".join(lines) + "\n"


def _facts(run: Run, result: RunResult) -> list[str]:
    contract = run.contract
    lines = [
        f"- run `{run.id}`, precision `{contract.precision.value}`, "
        f"purity `{contract.purity.value}`, seed {run.seed}",
        f"- authors {', '.join(run.authors)}; strategy {run.strategy.value}",
        f"- {result.measurements} measurements in {result.seconds:.0f} s; "
        f"stopped because {result.reason}",
    ]
    if result.flags:
        lines.append(f"- flags: {', '.join(result.flags)}")
    if result.estimated:
        lines.append(
            "- no GPU was used: correctness was proved in the Triton interpreter on the small "
            "workload; every time is an estimate from the compiled kernel"
        )
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
    reference_ms = timing.reference_back_to_back_ms
    if reference_ms is not None:
        text += f", those of {timing.reference} {reference_ms:.4g} ms"
    if timing.graph_ms is not None:
        text += f"; captured as a CUDA graph {timing.graph_ms:.4g} ms"
    is_lost = reference_ms is not None and timing.back_to_back_ms >= reference_ms
    if is_lost and timing.ratio is not None and timing.ratio > 1:
        held = "only under CUDA graphs" if timing.graph_ms is not None else "on the device alone"
        text += f". This win holds {held}: without, the host takes it back"
    return text


def _diagnosis_line(entry: RoundDiagnosis) -> str:
    offered = "; ".join(
        f"{prescription.skill} ({', '.join(prescription.reasons)})"
        for prescription in entry.prescriptions
    )
    return (
        f"- round {entry.round}, kernel `{entry.kernel[:12]}`: {entry.diagnosis.summary} "
        f"Offered: {offered or 'nothing'}"
    )


def _baseline_row(baseline: Baseline) -> str:
    if baseline.timing is None:
        why = baseline.log.splitlines()[-1] if baseline.log else ""
        return f"| {baseline.name} | failed | {why} |"
    timing = baseline.timing
    if baseline.estimated:
        return f"| {baseline.name} | {timing.latency_ms:.4g} (estimated) | |"
    return (
        f"| {baseline.name} | {timing.latency_ms:.4g} | "
        f"{timing.latency_ms_p20:.4g}-{timing.latency_ms_p80:.4g} |"
    )


def _usage_row(row: Usage) -> str:
    uncounted = f" ({row.uncounted} without counts)" if row.uncounted else ""
    usd = f"{row.usd:.4f}" if row.usd is not None else "price unknown"
    return (
        f"| {row.role} | {row.model} | {row.calls}{uncounted} | {row.input_tokens} | "
        f"{row.output_tokens} | {usd} |"
    )


def _attempt_row(number: int, attempt: Attempt) -> str:
    task, kernel = attempt.candidate.task, attempt.candidate.kernel
    measurement = attempt.measurement
    knobs = "; ".join(
        " ".join(f"{name}={value}" for name, value in choice.knobs) for choice in kernel.choices
    )
    time = ""
    if measurement.latency_ms is not None:
        time = f"{measurement.latency_ms:.4g}{' est.' if measurement.estimated else ''}"
    why = task.reason
    if measurement.status is not Status.PASSED and measurement.log:
        why += f" -- {measurement.log.strip().splitlines()[-1][:160]}"
    cells = (
        number,
        attempt.round,
        f"`{kernel.hash[:12]}`",
        f"`{kernel.parent[:12]}`" if kernel.parent else "",
        task.move.value,
        task.skill,
        knobs,
        measurement.status.value,
        time,
        f"{attempt.speedup:.2f}x" if attempt.speedup is not None else "",
        why.replace("|", "/"),
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def draw_convergence(path: Path, result: RunResult, attempts: Sequence[Attempt]) -> bool:
    """Plot the best time after each measurement; False if nothing passed."""
    timed = [
        (number, attempt.measurement.latency_ms)
        for number, attempt in enumerate(attempts, 1)
        if attempt.measurement.latency_ms is not None
    ]
    if not timed:
        return False
    import matplotlib  # half a second that no other command should pay

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    label = "estimated" if result.estimated else "measured"
    axes.scatter(*zip(*timed, strict=True), s=18, color="0.6", label=label)
    best, steps = float("inf"), []
    for number, latency_ms in timed:
        best = min(best, latency_ms)
        steps.append((number, best))
    axes.step(*zip(*steps, strict=True), where="post", color="tab:blue", label="best so far")
    for baseline in result.baselines:
        if baseline.timing is not None:
            time_ms, color = baseline.timing.latency_ms, "tab:orange"
            axes.axhline(time_ms, linestyle="--", linewidth=1, color=color)
            axes.annotate(baseline.name, (1, time_ms), fontsize=8, va="bottom", color=color)
    if result.bound is not None:
        axes.axhline(result.bound.time_ms, linestyle=":", color="tab:green", label="bound")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("candidate")
    axes.set_ylabel("ms")
    title = f"{result.problem} on {result.target}"
    axes.set_title(f"{title} (estimated)" if result.estimated else title, fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
