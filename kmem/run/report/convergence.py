"""The plot of a run: every candidate's time by skill, the best so far, baselines and bound."""

import importlib
from collections.abc import Sequence
from pathlib import Path

from kmem.records import Attempt, RunResult

#: Skills with a colour of their own; what was tried least shares a grey.
_COLOURED = 8


def draw_convergence(path: Path, result: RunResult, attempts: Sequence[Attempt]) -> bool:
    """Plot the best time after each measurement; False if nothing passed."""
    timed = timed_attempts(attempts)
    if not timed:
        return False
    import matplotlib  # a second that no other command should pay

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(7, 3.8), layout="constrained")
    by_skill: dict[str, list[tuple[int, float]]] = {}
    for number, attempt, latency_ms in timed:
        by_skill.setdefault(attempt.candidate.task.skill, []).append((number, latency_ms))
    ranked = sorted(by_skill.items(), key=lambda entry: -len(entry[1]))
    for place, (skill, points) in enumerate(ranked):
        colour = f"C{place}" if place < _COLOURED else "0.6"
        axes.scatter(*zip(*points, strict=True), s=18, color=colour, label=skill)
    steps = best_so_far(timed)
    axes.step(*zip(*steps, strict=True), where="post", color="0.2", label="best so far")
    for baseline in result.baselines:
        if baseline.timing is not None:
            time_ms, color = baseline.timing.latency_ms, "0.45"
            axes.axhline(time_ms, linestyle="--", linewidth=1, color=color)
            axes.annotate(baseline.name, (1, time_ms), fontsize=8, va="bottom", color=color)
    if result.bound is not None:
        axes.axhline(result.bound.time_ms, linestyle=":", color="tab:green", label="bound")
    axes.set_yscale("log")
    # 1, 2 and 5 of each decade: the labels of all nine would lie over each other
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("candidate")
    axes.set_ylabel("ms")
    title = f"{result.problem} on {result.target}"
    axes.set_title(f"{title} (estimated)" if result.estimated else title, fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True


def load_plotting() -> None:
    """Import what `draw_convergence` needs, in a thread beside whatever waits.

    That takes a second, and several where its fonts are looked for the first time.
    """
    import matplotlib

    matplotlib.use("Agg")
    importlib.import_module("matplotlib.pyplot")


def timed_attempts(attempts: Sequence[Attempt]) -> list[tuple[int, Attempt, float]]:
    """Attempts that passed: the number, from 1, the attempt, and its time in ms."""
    return [
        (number, attempt, attempt.measurement.latency_ms)
        for number, attempt in enumerate(attempts, 1)
        if attempt.measurement.latency_ms is not None
    ]


def best_so_far(timed: Sequence[tuple[int, Attempt, float]]) -> list[tuple[int, float]]:
    """The best time in ms after each of these attempts, with its number."""
    best, steps = float("inf"), []
    for number, _, latency_ms in timed:
        best = min(best, latency_ms)
        steps.append((number, best))
    return steps
