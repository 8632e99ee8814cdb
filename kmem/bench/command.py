"""What kmem is told to run a problem of a bench, and what is read of how that goes."""

import re
from itertools import chain

from kmem.bench.results import Settings

#: A run's minutes do not count waiting for the GPU, nor baselines that have a limit of their own.
_LIMIT_OVER_BUDGET = 2.0
_LIMIT_EXTRA_S = 1200.0
#: "stage text  [where it stands]", as kmem/cli/making/optimize.py prints it.
_PROGRESS = re.compile(r"(\w+) +(.*?)  \[(.*)\]")


def run_limit_s(settings: Settings) -> float:
    """When a run that has not ended is ended, in seconds."""
    minutes = settings.minutes * _LIMIT_OVER_BUDGET
    return 60 * (minutes + (settings.baseline_minutes or 0.0)) + _LIMIT_EXTRA_S


def optimize_words(
    asked: Settings, problem: str, run_directory: str, usd: float | None = None
) -> list[str]:
    """What kmem is told to run a problem, without the program itself."""
    options = {
        "--precision": asked.precision,
        "--purity": asked.purity,
        "--memory": asked.memory,
        "--rounds": str(asked.rounds),
        "--strategy": asked.strategy,
        "--minutes": str(asked.minutes),
        "--candidates": str(asked.candidates),
        "--baselines": asked.baselines,
    }
    if asked.baseline_minutes is not None:
        options["--baseline-minutes"] = str(asked.baseline_minutes)
    if asked.target:
        options["--target"] = asked.target
    if usd is not None and asked.authors:
        options["--usd"] = f"{usd:.6f}"
    options["--out"] = run_directory
    words = ["optimize", problem, *chain.from_iterable(options.items())]
    return [*words, *asked.authors, "--json"]


def read_stage(line: str) -> tuple[str, str] | None:
    """Stage and text of a progress line; None if it is none."""
    match = _PROGRESS.fullmatch(line)
    return (match[1], match[2]) if match else None
