"""What one simulated run cost and reached, against the best that its landscape holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.learning.landscape import Landscape
from kmem.records import Attempt, Status

#: A run has arrived when it has found a kernel with this share of the best recorded speed.
TARGET_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What one run cost and reached.

    `to_target` counts measurements until a kernel reached 95% of the best recorded speed, including
    the one of that kernel. A run that never got there is charged for every setting of the
    landscape, for that is what finding it would have cost (`reached` tells). `area` is the mean,
    over as many measurements as the landscape has settings, of the best speed so far over the best
    recorded one: 1 if the first measurement is the best; a run that ended keeps its last value.
    """

    reached: bool
    to_target: int
    rounds_to_target: int
    area: float
    # the module as it is if nothing passed; None if that was not timed either
    final_ms: float | None
    measurements: int
    # what best-of-n without memory came to by as many measurements; None as for `final_ms`
    control_ms: float | None = None


def run_metrics(
    attempts: Sequence[Attempt],
    landscape: Landscape,
    rounds: int,
    control: Sequence[Attempt] = (),
) -> RunMetrics:
    """The metrics of a run.

    Args:
        attempts: oldest first. What did not compile was not measured and costs nothing.
        rounds: that the run could have had, the first included: what a run is charged that never
            got there.
        control: of a run of best-of-n, which is cut off where this run ended.
    """
    measured = _measured(attempts)
    horizon = len(landscape.settings)
    best_ms = landscape.best.latency_ms
    target_ms = best_ms / TARGET_SHARE
    best_so_far: float | None = None
    shares: list[float] = []
    arrived: tuple[int, int] | None = None
    for place, attempt in enumerate(measured, start=1):
        latency_ms = attempt.measurement.latency_ms
        if latency_ms is not None and (best_so_far is None or latency_ms < best_so_far):
            best_so_far = latency_ms
        if arrived is None and best_so_far is not None and best_so_far <= target_ms:
            arrived = place, attempt.round + 1
        shares.append(best_ms / best_so_far if best_so_far is not None else 0.0)
    shares += [shares[-1] if shares else 0.0] * (horizon - len(shares))
    to_target, rounds_to_target = arrived or (horizon, rounds)
    final_ms = _best_ms(measured, landscape)
    return RunMetrics(
        arrived is not None,
        to_target,
        rounds_to_target,
        sum(shares[:horizon]) / horizon,
        final_ms,
        len(measured),
        _best_ms(_measured(control)[: len(measured)], landscape),
    )


def _measured(attempts: Sequence[Attempt]) -> list[Attempt]:
    return [
        attempt for attempt in attempts if attempt.measurement.status is not Status.BUILD_FAILED
    ]


def _best_ms(attempts: Sequence[Attempt], landscape: Landscape) -> float | None:
    """The best time; that of the module as it is if nothing passed."""
    times = [attempt.measurement.latency_ms for attempt in attempts]
    eager_ms = landscape.eager.latency_ms if landscape.eager is not None else None
    return min((ms for ms in times if ms is not None), default=eager_ms)
