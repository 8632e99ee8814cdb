"""The roofline of a kernel: how fast it computes, below what the device allows.

Across stands how many operations there are for each byte that must move, upwards operations a
second; the roof is the rate of memory up to the peak of the kind of arithmetic that needs most
time. Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.counters import read_quantities
from kmem.records import Bound, Device, Profile
from kmem.ui.figures import describe_ms, describe_rate
from kmem.ui.plots.frame import (
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    Tick,
    log_scale,
    log_ticks,
    spread_labels,
)

#: Free space beside the points and the ridge, as a factor.
_AROUND = 6.0
_MOVED = ("dram_read_bytes", "dram_write_bytes")


@dataclass(frozen=True, slots=True)
class Timed:
    """Something with a time: this kernel, its parent, a baseline.

    `moved` are the bytes that a profiler saw it move; None takes those that must.
    """

    kind: str  # "best", "baseline"
    name: str
    time_ms: float
    moved: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the plot, with the line to its label."""

    kind: str
    text: str
    x: float
    y: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The plot in pixels."""

    arithmetic: str  # the kind whose roof is drawn: fp32, tf32, ...
    roof: str
    roof_text: str
    marks: tuple[Mark, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


def draw_roofline(bound: Bound, device: Device, timed: Sequence[Timed]) -> Roofline | None:
    """The plot; None of a module that computes nothing, or has no time."""
    costs = {
        kind: flops / device.peak_flops_per_s[kind]
        for kind, flops in bound.flops.items()
        if flops > 0 and device.peak_flops_per_s.get(kind)
    }
    timed = [one for one in timed if one.time_ms > 0]
    if not costs or not bound.bytes or not timed:
        return None
    kind = max(costs, key=costs.__getitem__)
    flops, peak = bound.flops[kind], device.peak_flops_per_s[kind]
    rate = device.dram_bytes_per_s
    ridge, least = peak / rate, flops / bound.bytes
    xs = [flops / (one.moved or bound.bytes) for one in timed]
    ys = [1e3 * flops / one.time_ms for one in timed]
    left, right = min(ridge, least, *xs) / _AROUND, max(ridge, least, *xs) * _AROUND
    across = Scale(left, right, LEFT, WIDTH - RIGHT, True)
    up = log_scale([*ys, peak, rate * left])
    roof = (
        f"M{across.place(left)} {up.place(rate * left)}L{across.place(ridge)} {up.place(peak)}"
        f"H{across.place(right)}"
    )
    share = ys[0] / min(peak, rate * xs[0])
    limit = "memory" if xs[0] < ridge else kind
    summary = (
        f"{describe_rate(ys[0])} {kind} operations/s, {share:.0%} of what {limit} allows at "
        f"{xs[0]:.3g} operations a byte"
    )
    return Roofline(
        kind,
        roof,
        f"{describe_rate(rate)}B/s, then {describe_rate(peak)} {kind} operations/s",
        tuple(_marks(timed, [across.place(x) for x in xs], [up.place(y) for y in ys])),
        tuple(log_ticks(across)),
        tuple(log_ticks(up, describe_rate)),
        summary,
    )


def _marks(timed: Sequence[Timed], xs: Sequence[float], ys: Sequence[float]) -> list[Mark]:
    """The points with their labels, which are moved apart."""
    texts = [f"{one.name} {describe_ms(one.time_ms)}" for one in timed]
    labels = spread_labels(
        [(str(place), text, y) for place, (text, y) in enumerate(zip(texts, ys, strict=True))]
    )
    heights = {int(label.kind): label.label_y for label in labels}
    return [
        Mark(one.kind, texts[place], xs[place], ys[place], heights[place])
        for place, one in enumerate(timed)
    ]


def moved_bytes(profile: Profile | None) -> float | None:
    """The bytes that all launches moved through device memory, where a profiler counted them."""
    if profile is None or not profile.launches:
        return None
    counted = [read_quantities(launch.metrics) for launch in profile.launches]
    if not all(name in found for found in counted for name in _MOVED):
        return None
    return sum(found[name] for found in counted for name in _MOVED) or None
