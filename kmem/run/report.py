"""report.md and its convergence plot: what was tried, why, what it brought, and how far the bound
still is.
"""

from collections.abc import Sequence
from pathlib import Path

from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.memory.runs.runs import RoundDiagnosis
from kmem.records import Attempt, Baseline, Lesson, Run, RunResult, Status, fastest_baseline
from kmem.run.directory import RunDirectory


def write_report(
    directory: RunDirectory,
    run: Run,
    result: RunResult,
    attempts: Sequence[Attempt],
    diagnoses: Sequence[RoundDiagnosis],
    notes: Sequence[str],
    *,
    lessons: Sequence[Lesson] = (),
    usage: Sequence[Usage] = (),
) -> Path:
    """Write convergence.png and report.md; returns the report's path."""
    plotted = draw_convergence(directory.root / "convergence.png", result, attempts)
    text = render_report(
        run, result, attempts, diagnoses, notes, plotted=plotted, lessons=lessons, usage=usage
    )
    return directory.write_text("report.md", text)


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


def render_report(
    run: Run,
    result: RunResult,
    attempts: Sequence[Attempt],
    diagnoses: Sequence[RoundDiagnosis],
    notes: Sequence[str],
    *,
    plotted: bool,
    lessons: Sequence[Lesson] = (),
    usage: Sequence[Usage] = (),
) -> str:
    """The report as Markdown."""
    contract = run.contract
    lines = [
        f"# {run.problem.name} on {result.target}",
        "",
        summarise(result),
        "",
        (
            f"- run `{run.id}`, precision `{contract.precision.value}`, purity "
            f"`{contract.purity.value}`, seed {run.seed}"
        ),
        f"- authors {', '.join(run.authors)}; strategy {run.strategy.value}",
        (
            f"- {result.measurements} measurements in {result.seconds:.0f} s; stopped because "
            f"{result.reason}"
        ),
    ]
    if result.flags:
        lines.append(f"- flags: {', '.join(result.flags)}")
    if result.estimated:
        lines.append(
            "- no GPU was used: correctness was proved in the Triton interpreter on the small "
            "workload; "
            "every time is an estimate from the compiled kernel"
        )
    if result.bound is not None:
        flops = ", ".join(
            f"{value / 1e9:.4g} G {unit}" for unit, value in result.bound.flops.items() if value
        )
        work = f"{result.bound.bytes / 1e6:.4g} MB; {flops or 'no counted arithmetic'}"
        lines.append(
            f"- bound: {result.bound.time_ms:.4g} ms, limited by {result.bound.limiter} ({work})"
        )
    lines += [f"- note: {note}" for note in notes]
    if plotted:
        lines += [
            "",
            "![Best time after each measurement, with baselines and bound](convergence.png)",
        ]
    lines += ["", "## Baselines", "", "| baseline | ms | p20-p80 |", "|---|---|---|"]
    lines += [_baseline_row(baseline) for baseline in result.baselines]
    lines += ["", "## Diagnoses", ""]
    for entry in diagnoses:
        offered = "; ".join(
            f"{prescription.skill} ({', '.join(prescription.reasons)})"
            for prescription in entry.prescriptions
        )
        lines.append(
            f"- round {entry.round}, kernel `{entry.kernel[:12]}`: {entry.diagnosis.summary} "
            f"Offered: {offered or 'nothing'}"
        )
    if lessons:
        lines += ["", "## Lessons", ""]
        lines += [
            f"- round {lesson.round}, kernel `{lesson.kernel[:12]}`: {lesson.text}"
            for lesson in lessons
        ]
    if usage:
        lines += [
            "",
            "## Language models",
            "",
            "| role | model | calls | input tokens | output tokens | USD |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_usage_row(row) for row in (*usage, total_usage(usage))]
    lines += [
        "",
        "## Attempts",
        "",
        "| # | round | kernel | from | move | skill | knobs | status | ms | vs parent | why |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_attempt_row(number, attempt) for number, attempt in enumerate(attempts, 1)]
    return "\n".join(lines) + "\n"


def _baseline_row(baseline: Baseline) -> str:
    if baseline.timing is None:
        return (
            f"| {baseline.name} | failed | {baseline.log.splitlines()[-1] if baseline.log else ''} "
            f"|"
        )
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
    task, measurement = attempt.candidate.task, attempt.measurement
    knobs = "; ".join(
        " ".join(f"{name}={value}" for name, value in choice.knobs)
        for choice in attempt.candidate.kernel.choices
    )
    time = (
        f"{measurement.latency_ms:.4g}" + (" est." if measurement.estimated else "")
        if measurement.latency_ms is not None
        else ""
    )
    speedup = f"{attempt.speedup:.2f}x" if attempt.speedup is not None else ""
    why = task.reason
    if measurement.status is not Status.PASSED and measurement.log:
        why += f" -- {measurement.log.strip().splitlines()[-1][:160]}"
    status = measurement.status.value
    kernel = attempt.candidate.kernel
    lineage = f"`{kernel.hash[:12]}`", f"`{kernel.parent[:12]}`" if kernel.parent else ""
    cells = (
        number,
        attempt.round,
        *lineage,
        task.move.value,
        task.skill,
        knobs,
        status,
        time,
        speedup,
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
    axes.scatter(
        *zip(*timed, strict=True),
        s=18,
        color="0.6",
        label="measured" if not result.estimated else "estimated",
    )
    best, steps = float("inf"), []
    for number, latency_ms in timed:
        best = min(best, latency_ms)
        steps.append((number, best))
    axes.step(*zip(*steps, strict=True), where="post", color="tab:blue", label="best so far")
    for baseline in result.baselines:
        if baseline.timing is not None:
            axes.axhline(
                baseline.timing.latency_ms, linestyle="--", linewidth=1, color="tab:orange"
            )
            axes.annotate(
                baseline.name,
                (1, baseline.timing.latency_ms),
                fontsize=8,
                va="bottom",
                color="tab:orange",
            )
    if result.bound is not None:
        axes.axhline(result.bound.time_ms, linestyle=":", color="tab:green", label="bound")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("candidate")
    axes.set_ylabel("ms")
    axes.set_title(
        f"{result.problem} on {result.target}" + (" (estimated)" if result.estimated else ""),
        fontsize=10,
    )
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
