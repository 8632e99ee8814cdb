"""The plot of a run: every candidate's time, how the best came down, baselines and bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kmem.records import Attempt, Baseline
from kmem.run.report.convergence import best_so_far, timed_attempts
from kmem.ui.figures import describe_ms
from kmem.ui.plots.frame import (
    LEFT,
    RIGHT,
    WIDTH,
    Dot,
    Level,
    Scale,
    Tick,
    count_ticks,
    log_scale,
    log_ticks,
    spread_labels,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Staircase:
    """The plot in pixels. `refused` are the places of candidates that did not pass."""

    path: str
    dots: tuple[Dot, ...]
    refused: tuple[float, ...]
    levels: tuple[Level, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str
    passed: int
    drawn: int  # of those that passed; each that was the best so far is among them


#: More dots would lie over each other.
_DOTS, _MARKS = 300, 200


def draw_staircase(
    attempts: Sequence[Attempt], baselines: Sequence[Baseline], bound_ms: float | None
) -> Staircase | None:
    """The plot of a run as it stands; None while nothing has passed."""
    timed = timed_attempts(attempts)
    if not timed:
        return None
    known = [(one.name, one.timing.latency_ms) for one in baselines if one.timing is not None]
    steps = best_so_far(timed)
    best_ms = steps[-1][1]
    heights = [*(ms for _, _, ms in timed), *(ms for _, ms in known)]
    scale = log_scale([*heights, bound_ms] if bound_ms else heights)
    across = Scale(0.5, len(attempts) + 0.5, LEFT, WIDTH - RIGHT)
    path = f"M{across.place(steps[0][0])} {scale.place(steps[0][1])}"
    for number, latency_ms in steps[1:]:
        path += f"H{across.place(number)}V{scale.place(latency_ms)}"
    levels = [("baseline", f"{name} {describe_ms(ms)}", scale.place(ms)) for name, ms in known]
    levels.append(("best", f"best {describe_ms(best_ms)}", scale.place(best_ms)))
    if bound_ms:
        levels.append(("bound", f"bound {describe_ms(bound_ms)}", scale.place(bound_ms)))
    dots = _dots(timed, steps, across, scale)
    dots = [*thin([dot for dot in dots if not dot.leads], _DOTS), *(d for d in dots if d.leads)]
    refused = [
        across.place(number)
        for number, attempt in enumerate(attempts, 1)
        if attempt.measurement.latency_ms is None
    ]
    return Staircase(
        f"{path}H{WIDTH - RIGHT}",
        tuple(sorted(dots, key=lambda dot: dot.x)),
        tuple(thin(refused, _MARKS)),
        tuple(spread_labels(levels)),
        tuple(count_ticks(across, len(attempts))),
        tuple(log_ticks(scale, describe_ms)),
        _summary(len(attempts), len(timed), best_ms, bound_ms),
        len(timed),
        len(dots),
    )


def thin(values: Sequence[Value], most: int) -> Sequence[Value]:
    """At most so many of the values, evenly chosen."""
    return values[:: -(-len(values) // most)] if len(values) > most else values


def _dots(
    timed: Sequence[tuple[int, Attempt, float]],
    steps: Sequence[tuple[int, float]],
    across: Scale,
    scale: Scale,
) -> list[Dot]:
    best_before = [float("inf"), *(best_ms for _, best_ms in steps)]
    return [
        Dot(
            across.place(number),
            scale.place(latency_ms),
            attempt.candidate.kernel.hash,
            f"#{number} {attempt.candidate.task.skill}: {describe_ms(latency_ms)}",
            latency_ms < before,
        )
        for (number, attempt, latency_ms), before in zip(timed, best_before, strict=False)
    ]


def _summary(attempts: int, passed: int, best_ms: float, bound_ms: float | None) -> str:
    text = f"{attempts} candidates, {passed} passed; the best takes {describe_ms(best_ms)}"
    return f"{text}, the bound is {describe_ms(bound_ms)}" if bound_ms else text
