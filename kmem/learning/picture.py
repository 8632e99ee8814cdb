"""The picture of an ablation: how soon each arm's runs arrive, and what each problem needed."""

from collections.abc import Sequence
from pathlib import Path

from kmem.learning.ablation import Trial
from kmem.learning.arms import Arm
from kmem.learning.metrics import TARGET_SHARE

_COLORS = {
    Arm.OFF: "black",
    Arm.READ: "tab:blue",
    Arm.RW: "tab:green",
    Arm.PLACEBO: "tab:orange",
    Arm.SHUFFLED: "tab:olive",
    Arm.POISON: "tab:red",
    Arm.ORACLE: "tab:purple",
}
_INCHES_PER_PROBLEM = 0.28
#: Between the arms of one problem, of the distance between problems: marks at the same count must
#: not hide each other.
_STEP = 0.15


def draw_ablation(path: Path, trials: Sequence[Trial], *, title: str) -> None:
    """Write the picture.

    Left is the share of runs that have arrived after n measurements, right the mean needed by
    problem and arm.
    """
    import matplotlib  # half a second that no other command should pay

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    problems = sorted({trial.problem for trial in trials})
    arms = [arm for arm in Arm if any(trial.arm is arm for trial in trials)]
    horizon = max(trial.metrics.to_target for trial in trials)
    figure, axes = pyplot.subplots(
        1, 2, figsize=(12, max(4.0, _INCHES_PER_PROBLEM * len(problems))), layout="constrained"
    )
    arrivals, needs = axes
    for step, arm in enumerate(arms):
        own = [trial.metrics for trial in trials if trial.arm is arm]
        shares = [
            sum(run.reached and run.to_target <= count for run in own) / len(own)
            for count in range(1, horizon + 1)
        ]
        arrivals.step(
            range(1, horizon + 1), shares, where="post", color=_COLORS[arm], label=arm.value
        )
        for place, problem in enumerate(problems):
            counts = [
                trial.metrics.to_target
                for trial in trials
                if trial.arm is arm and trial.problem == problem
            ]
            needs.plot(
                sum(counts) / len(counts),
                place + _STEP * (step - len(arms) / 2),
                "o",
                markersize=4,
                color=_COLORS[arm],
            )
    arrivals.set_xlabel("measurements")
    arrivals.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    arrivals.set_ylabel(f"share of runs at {TARGET_SHARE:.0%} of the best recorded speed")
    arrivals.set_ylim(0, 1.02)
    arrivals.legend()
    needs.set_yticks(range(len(problems)), problems, fontsize=7)
    needs.set_xlabel("mean measurements to get there")
    needs.set_xscale("log", base=2)
    needs.xaxis.set_major_formatter(ticker.ScalarFormatter())
    needs.grid(axis="y", linewidth=0.3)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
