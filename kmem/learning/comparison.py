"""Arms compared with the search without memory, pair by pair: same problem, same seed.

Intervals are from a bootstrap over problems.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kmem.learning.ablation import Trial
from kmem.learning.arms import Arm

if TYPE_CHECKING:
    import numpy as np

    #: Figures of one arm by name, (problems, seeds) each; and places in such a table, one set of
    #: them per resample.
    Tables: TypeAlias = dict[str, np.ndarray]
    Places: TypeAlias = tuple[np.ndarray, ...]

RESAMPLES = 2000
#: A run that ends more than this much slower than the one without memory has suffered negative
#: transfer.
HARM = 1.02


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What an arm's memory changed.

    Shares are of all runs of the arm; the plain figures are means over runs.

    `saved` is the share of measurements to the target that memory spared: 1 - (sum with memory) /
    (sum without). `total` is (sum with memory) / (sum without) of whole runs, to their ends.
    `final_speed` is the geometric mean of time without over time with memory, at the end.
    `control` is the same of the time of best-of-n without memory, cut off at as many measurements.
    `negative_transfer` is the share of runs that end more than 2% slower than the run without
    memory of the same problem and seed: worse performance on the target, as the field uses the word
    (source: Pan and Yang, "A Survey on Transfer Learning", 2010). Runs that were held up beside it:
    `more_measurements` to the target, be it one, and `later_rounds` (a round's candidates are
    measured as one batch).
    """

    arm: Arm
    runs: int
    to_target: float
    rounds_to_target: float
    reached: float
    area: float
    measurements: float
    saved: Interval
    total: Interval
    final_speed: Interval
    control: Interval
    area_gained: Interval
    negative_transfer: Interval
    more_measurements: float
    later_rounds: float


def compare_arms(trials: Sequence[Trial], *, seed: int = 0) -> list[Comparison]:
    """Every arm against `off`, in the order of the arms; `off` itself too, for its plain figures.

    The intervals are percentiles of a bootstrap that draws problems first and then seeds within
    each, so that seeds of one problem do not count as other problems. Source: Davison and Hinkley,
    "Bootstrap Methods and their Application", 1997, section 3.8 (strategy 2).

    Raises:
        ValueError: without trials of the arm `off`, or with a problem and seed that one arm lacks.
    """
    import numpy as np  # as late as everywhere in kmem

    problems = sorted({trial.problem for trial in trials})
    seeds = sorted({trial.seed for trial in trials})
    by_key = {(trial.arm, trial.problem, trial.seed): trial for trial in trials}
    arms = [arm for arm in Arm if any(trial.arm is arm for trial in trials)]
    if Arm.OFF not in arms or len(by_key) != len(arms) * len(problems) * len(seeds):
        raise ValueError(
            "arms are compared pair by pair: every arm, off among them, needs every problem and "
            "seed"
        )

    def table(arm: Arm, figure: Callable[[Trial], float]) -> "np.ndarray":
        return np.array(
            [[figure(by_key[arm, problem, seed]) for seed in seeds] for problem in problems],
            dtype=float,
        )

    draws = _draws(len(problems), len(seeds), seed)
    without = {name: table(Arm.OFF, figure) for name, figure in _FIGURES.items()}
    return [
        _compare(
            arm, {name: table(arm, figure) for name, figure in _FIGURES.items()}, without, draws
        )
        for arm in arms
    ]


def _final_ms(trial: Trial) -> float:
    return trial.metrics.final_ms if trial.metrics.final_ms is not None else float("inf")


_FIGURES: dict[str, Callable[[Trial], float]] = {
    "to_target": lambda trial: trial.metrics.to_target,
    "rounds": lambda trial: trial.metrics.rounds_to_target,
    "reached": lambda trial: trial.metrics.reached,
    "area": lambda trial: trial.metrics.area,
    "measurements": lambda trial: trial.metrics.measurements,
    "final_ms": _final_ms,
    "control_ms": lambda trial: trial.metrics.control_ms or _final_ms(trial),
}


def _draws(problems: int, seeds: int, seed: int) -> "Places":
    """Rows and columns of the table for every resample: (resamples, problems, seeds) each."""
    import numpy as np

    generator = np.random.default_rng(seed)
    rows = generator.integers(problems, size=(RESAMPLES, problems, 1))
    columns = generator.integers(seeds, size=(RESAMPLES, problems, seeds))
    return np.broadcast_to(rows, columns.shape), columns


def _compare(arm: Arm, with_memory: "Tables", without: "Tables", draws: "Places") -> Comparison:
    import numpy as np

    log_speed = np.log(without["final_ms"]) - np.log(with_memory["final_ms"])
    log_control = np.log(with_memory["control_ms"]) - np.log(with_memory["final_ms"])
    slower = with_memory["final_ms"] > HARM * without["final_ms"]
    more_measurements = with_memory["to_target"] > without["to_target"]
    later_rounds = with_memory["rounds"] > without["rounds"]

    def interval(statistic: "Callable[[Places], np.ndarray]") -> Interval:
        once = tuple(axis[None] for axis in np.indices(log_speed.shape))
        low, high = np.percentile(statistic(draws), [2.5, 97.5])
        return Interval(float(statistic(once)[0]), float(low), float(high))

    def mean(table: "np.ndarray", places: "Places") -> "np.ndarray":
        return table[places].mean(axis=(1, 2))

    return Comparison(
        arm=arm,
        runs=log_speed.size,
        to_target=float(with_memory["to_target"].mean()),
        rounds_to_target=float(with_memory["rounds"].mean()),
        reached=float(with_memory["reached"].mean()),
        area=float(with_memory["area"].mean()),
        measurements=float(with_memory["measurements"].mean()),
        saved=interval(
            lambda places: (
                1.0 - mean(with_memory["to_target"], places) / mean(without["to_target"], places)
            )
        ),
        total=interval(
            lambda places: (
                mean(with_memory["measurements"], places) / mean(without["measurements"], places)
            )
        ),
        final_speed=interval(lambda places: np.exp(mean(log_speed, places))),
        control=interval(lambda places: np.exp(mean(log_control, places))),
        area_gained=interval(lambda places: mean(with_memory["area"] - without["area"], places)),
        negative_transfer=interval(lambda places: mean(slower.astype(float), places)),
        more_measurements=float(more_measurements.mean()),
        later_rounds=float(later_rounds.mean()),
    )
