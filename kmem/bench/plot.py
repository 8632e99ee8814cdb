"""The picture of a bench: every problem's time and its baselines', as multiples of its bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kmem.bench.rows import Row, RowStatus

_INCHES_PER_PROBLEM = 0.17
_LONGEST_NAME = 44
_BASELINES = {
    "eager": ("|", "tab:orange"),
    "compile": ("x", "tab:red"),
    "max_autotune": ("+", "tab:purple"),
}


def draw_times(path: Path, rows: Sequence[Row], *, title: str, measured: bool) -> bool:
    """Write the picture, logarithmic, with the bound at 1.

    Returns:
        False if no row has a time and a bound.
    """
    timed = [row for row in rows if row.time_ms is not None and row.bound_ms]
    if not timed:
        return False
    import matplotlib  # half a second that no other command should pay

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        figsize=(9, 1.6 + _INCHES_PER_PROBLEM * len(timed)), layout="constrained"
    )
    axes.axvline(1.0, color="tab:green", label="bound")

    def scatter(times_ms: Mapping[int, float], **style: object) -> None:
        if times_ms:
            axes.scatter(
                [time_ms / timed[place].bound_ms for place, time_ms in times_ms.items()],
                list(times_ms),
                **style,
            )

    for name, (marker, color) in _BASELINES.items():
        times_ms = {
            place: row.baselines_ms[name]
            for place, row in enumerate(timed)
            if name in row.baselines_ms
        }
        scatter(times_ms, marker=marker, s=28, color=color, label=name, linewidths=1)
    won = {place: row.time_ms for place, row in enumerate(timed) if row.status is RowStatus.PASSED}
    scatter(won, s=16, color="tab:blue", label="kmem, verified", zorder=3)
    axes.set_xscale("log")
    axes.set_xlabel("time over bound" if measured else "estimated time over bound")
    axes.set_yticks(
        range(len(timed)),
        [f"{row.problem[:_LONGEST_NAME]}  {row.bound_ms:.3g} ms" for row in timed],
        fontsize=6,
    )
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.grid(axis="y", linewidth=0.3)
    axes.set_title(title, fontsize=10)
    figure.legend(fontsize=7, loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
    return True
