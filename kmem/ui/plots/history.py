"""The best times of a problem's runs as they came, a plot for each device and kind of figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.ui.figures import Origin, describe_date, describe_factor, describe_ms
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


@dataclass(frozen=True, slots=True)
class History:
    """One plot in pixels."""

    name: str
    path: str
    dots: tuple[Dot, ...]
    labels: tuple[Level, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


def draw_history(
    runs: Sequence[tuple[Origin, str, float, float | None]],
) -> list[History]:
    """The plots of runs in the order in which they came, where there are two or more.

    Args:
        runs: where the figures come from, the run's id, its best time in ms, its speedup.
    """
    groups: dict[tuple[str, str], list[tuple[Origin, str, float, float | None]]] = {}
    for entry in runs:
        groups.setdefault((entry[0].device, entry[0].kind), []).append(entry)
    return [_draw(device, kind, own) for (device, kind), own in groups.items() if len(own) > 1]


def _draw(
    device: str, kind: str, runs: Sequence[tuple[Origin, str, float, float | None]]
) -> History:
    up = log_scale([time_ms for _, _, time_ms, _ in runs])
    across = Scale(0.5, len(runs) + 0.5, LEFT, WIDTH - RIGHT)
    dots: list[Dot] = []
    path, best_ms = "", float("inf")
    for number, (origin, run, time_ms, speedup) in enumerate(runs, 1):
        leads, best_ms = time_ms < best_ms, min(best_ms, time_ms)
        x = across.place(number)
        path += f"H{x}V{up.place(best_ms)}" if path else f"M{x} {up.place(best_ms)}"
        said = f", {describe_factor(speedup)}" if speedup is not None else ""
        text = f"{describe_date(origin.date)}: {describe_ms(time_ms)}{said}"
        dots.append(Dot(x, up.place(time_ms), run, text, leads))
    labels = spread_labels([("best", f"best {describe_ms(best_ms)}", up.place(best_ms))])
    first, last = runs[0][0], runs[-1][0]
    return History(
        f"{device}, {kind}",
        f"{path}H{WIDTH - RIGHT}",
        tuple(dots),
        tuple(labels),
        tuple(count_ticks(across, len(runs))),
        tuple(log_ticks(up, describe_ms)),
        f"{len(runs)} runs, the best takes {describe_ms(best_ms)}; {kind} "
        f"{'for' if first.estimated else 'on'} {device}, {describe_date(first.date)} to "
        f"{describe_date(last.date)}",
    )
