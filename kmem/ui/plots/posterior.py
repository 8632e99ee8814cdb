"""The plot of a skill over time: how likely its next kernel is correct, as outcomes came in.

After each outcome the probability has the posterior Beta(1 + passed, 1 + failed); the band is its
mean give or take two deviations. Trust in origins and age do not enter here: the plot shows what
was seen, `kmem.memory.ledger.posteriors` what is made of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kmem.memory.ledger.listing import Success
from kmem.ui.plots.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, Tick, count_ticks

#: Points of the line, about; a skill may have a hundred thousand outcomes.
POINTS = 160


@dataclass(frozen=True, slots=True)
class PosteriorPlot:
    """The plot in pixels."""

    line: str
    band: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    end: Tick  # where the line ends, and what it says there
    summary: str


def draw_posterior(outcomes: Sequence[Success]) -> PosteriorPlot | None:
    """The plot of a skill's outcomes, summed up as they came; None without any."""
    if not outcomes:
        return None
    total, passed = outcomes[-1].count, outcomes[-1].passed
    across = Scale(0, total, LEFT, WIDTH - RIGHT)
    up = Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    middle: list[str] = []
    upper: list[str] = []
    lower: list[str] = []
    for count, successes in [(0, 0), *((each.count, each.passed) for each in outcomes)]:
        mean, deviation = _beta(1 + successes, 1 + count - successes)
        x = across.place(count)
        middle.append(f"{x} {up.place(mean)}")
        upper.append(f"{x} {up.place(min(1.0, mean + 2 * deviation))}")
        lower.append(f"{x} {up.place(max(0.0, mean - 2 * deviation))}")
    mean, deviation = _beta(1 + passed, 1 + total - passed)
    return PosteriorPlot(
        "M" + "L".join(middle),
        "M" + "L".join([*upper, *reversed(lower)]) + "Z",
        tuple(count_ticks(across, total)),
        tuple(Tick(up.place(share / 4), f"{share / 4:.0%}") for share in range(5)),
        Tick(up.place(mean), f"{mean:.0%} ± {2 * deviation:.0%}"),
        f"{passed} of {total} outcomes passed; "
        f"all counted alike, the next does with probability {mean:.0%}",
    )


def _beta(alpha: float, beta: float) -> tuple[float, float]:
    """Mean and deviation of a Beta distribution."""
    total = alpha + beta
    return alpha / total, math.sqrt(alpha * beta / (total * total * (total + 1)))
