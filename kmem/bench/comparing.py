"""Two benches paired row by row: what the answers of one are worth beside those of the other.

A problem's pair is the time of the first bench's answer over that of the second's; where either
found nothing faster, its answer is the best baseline, as for the user. Intervals over problems are
from a bootstrap of the pairs. Source: Davison and Hinkley, "Bootstrap Methods and their
Application", 1997, section 2.2.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.bench.rows import Row
from kmem.bench.scores import WIN

_RESAMPLES = 2000
Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """One problem in both benches."""

    problem: str
    first: Row
    second: Row

    @property
    def gain(self) -> float:
        """Time of the first answer over time of the second: above 1 the second is faster.

        Each is held against its own best baseline, which cancels what changed of the machine.
        """
        return self.second.ratio / self.first.ratio

    @property
    def bounds(self) -> Bounds | None:
        """The interval of the gain: as far as both rows' own 95% intervals let it lie.

        None where a row has no interval.
        """
        lower, upper = _interval(self.first), _interval(self.second)
        if lower is None or upper is None:
            return None
        return upper[0] / lower[1], upper[1] / lower[0]

    @property
    def is_told_apart(self) -> bool:
        """Whether the difference is more than both intervals, and more than what repeats."""
        if self.bounds is None or 1 / WIN <= self.gain <= WIN:
            return False
        return self.bounds[0] > 1.0 or self.bounds[1] < 1.0


@dataclass(frozen=True, slots=True)
class Compared:
    """All pairs together, with 95% intervals over problems.

    `gain` is the geometric mean of the pairs' gains; `measurements` and `seconds` are those of the
    second bench over those of the first, None where a bench does not say.
    """

    pairs: tuple[Pair, ...]
    unpaired: tuple[str, ...]  # in one bench alone, or failed in one
    gain: float
    gain_bounds: Bounds
    measurements: float | None
    measurements_bounds: Bounds | None
    seconds: float
    seconds_bounds: Bounds
    faster: int  # pairs in which the second is told apart as faster
    slower: int


def compare_rows(first: Sequence[Row], second: Sequence[Row], *, seed: int = 0) -> Compared | None:
    """Pair the rows of two benches by problem; None if no problem ended in both."""
    ours = {row.key: row for row in first if not row.failed}
    theirs = {row.key: row for row in second if not row.failed}
    pairs = [Pair(row.problem, row, theirs[key]) for key, row in ours.items() if key in theirs]
    if not pairs:
        return None
    paired = {pair.first.key for pair in pairs}
    unpaired = dict.fromkeys(row.problem for row in (*first, *second) if row.key not in paired)
    counted = all(row.measurements for pair in pairs for row in (pair.first, pair.second))
    generator = random.Random(seed)
    draws = [generator.choices(pairs, k=len(pairs)) for _ in range(_RESAMPLES)]

    def told(statistic: Callable[[Sequence[Pair]], float]) -> tuple[float, Bounds]:
        drawn = sorted(map(statistic, draws))
        return statistic(pairs), (drawn[_RESAMPLES // 40], drawn[-_RESAMPLES // 40 - 1])

    gain, gain_bounds = told(
        lambda some: math.exp(statistics.fmean(math.log(pair.gain) for pair in some))
    )
    seconds, seconds_bounds = told(
        lambda some: (
            sum(pair.second.seconds for pair in some) / sum(pair.first.seconds for pair in some)
        )
    )
    measurements, measurements_bounds = (
        told(
            lambda some: (
                sum(pair.second.measurements or 0 for pair in some)
                / sum(pair.first.measurements or 0 for pair in some)
            )
        )
        if counted
        else (None, None)
    )
    return Compared(
        tuple(pairs),
        tuple(unpaired),
        gain,
        gain_bounds,
        measurements,
        measurements_bounds,
        seconds,
        seconds_bounds,
        sum(pair.is_told_apart and pair.gain > 1 for pair in pairs),
        sum(pair.is_told_apart and pair.gain < 1 for pair in pairs),
    )


def render_comparison(compared: Compared, names: Mapping[str, str]) -> str:
    """The pairs and their means as Markdown; `names` are of the benches, "first" and "second"."""
    first, second = names["first"], names["second"]
    lines = [
        f"| problem | {first} | {second} | gain | 95% interval | measurements |",
        "|---|---|---|---|---|---|",
    ]
    for pair in sorted(compared.pairs, key=lambda pair: -pair.gain):
        bounds = f"{pair.bounds[0]:.3f} to {pair.bounds[1]:.3f}" if pair.bounds else ""
        spent = f"{pair.first.measurements or '?'} and {pair.second.measurements or '?'}"
        lines.append(
            f"| {pair.problem} | {pair.first.ratio:.3f}x | {pair.second.ratio:.3f}x | "
            f"{pair.gain:.3f} | {bounds} | {spent} |"
        )
    lines += [
        "",
        f"{len(compared.pairs)} pairs: the kernels of {second} are "
        f"{_told(compared.gain, compared.gain_bounds)} times as fast as those of {first} in the "
        f"geometric mean; {compared.faster} are told apart as faster, {compared.slower} as slower.",
        f"{second} took {_told(compared.seconds, compared.seconds_bounds)} of the seconds.",
    ]
    if compared.measurements is not None and compared.measurements_bounds is not None:
        spent = _told(compared.measurements, compared.measurements_bounds)
        lines[-1] += f" It took {spent} of the measurements."
    if compared.unpaired:
        lines.append(f"Not in both: {', '.join(compared.unpaired)}.")
    return "\n".join(lines)


def _told(value: float, bounds: Bounds) -> str:
    return f"{value:.3f} ({bounds[0]:.3f} to {bounds[1]:.3f})"


def _interval(row: Row) -> Bounds | None:
    """The 95% interval of a row's ratio; the module as it is has ratio 1 exactly."""
    if row.speedup is None:
        return 1.0, 1.0
    low, high = (row.result.get(name) for name in ("ratio_low", "ratio_high")) if row.result else ()
    return (low, high) if low and high else None
