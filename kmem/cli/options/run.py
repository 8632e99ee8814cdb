"""What `kmem optimize` can be told of a run: RunOptions."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.authors import AUTHORS, author_option
from kmem.cli.options.baselines import BaselineOptions
from kmem.cli.options.budget import minutes_option, rounds_option
from kmem.cli.options.contract import (
    ContractOptions,
    memory_option,
    mode_option,
    target_option,
    user_test_option,
)
from kmem.cli.options.executor import ExecutorOptions
from kmem.cli.options.models import ModelOptions
from kmem.cli.options.records import nested, option
from kmem.records import Budget, Strategy


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `kmem optimize` that a run is made from."""

    rounds: int = rounds_option(
        "Rounds after the first; 0 verifies a remembered kernel alone, if there is one."
    )
    minutes: float = minutes_option("--minutes", "Wall-clock budget, final verification included")
    candidates: int = option(
        "--candidates",
        type=click.IntRange(min=1),
        default=12,
        show_default=True,
        help="Candidates of a round, about; fewer are quicker where compiling is slow.",
    )
    timing: BaselineOptions = nested(BaselineOptions)
    target: str | None = target_option()
    mode: str | None = mode_option()
    contract: ContractOptions = nested(ContractOptions)
    memory_mode: str = memory_option()
    author: str = author_option()
    models: ModelOptions = nested(ModelOptions)
    start: Path | None = option(
        "--from",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="KERNEL",
        help="Your own Triton kernel, a file with ModelNew, to start from: it is judged as it "
        "stands, its numbers are moved, models rewrite it, and recipes compete with it.",
    )
    test: Path | None = user_test_option()
    strategy: str = option(
        "--strategy",
        type=click.Choice([item.value for item in Strategy]),
        default="bandit",
        show_default=True,
        help="How a round's candidates are shared out; best-of-n is the control that search must "
        "beat.",
    )
    usd: float | None = option(
        "--usd",
        type=click.FloatRange(min=0),
        help="Most that language models may cost; default: no limit.",
    )
    tokens: int | None = option(
        "--tokens",
        type=click.IntRange(min=0),
        help="Most tokens that language models may read and write; default: no limit.",
    )
    out: Path | None = option(
        "--out",
        type=click.Path(path_type=Path),
        help="Directory of this run alone; default: <problem>-<run id> in KMEM_OUT, or in runs/.",
    )
    seed: int = option(
        "--seed", type=int, default=0, show_default=True, help="Seed of every random choice."
    )
    where: ExecutorOptions = nested(ExecutorOptions)

    @property
    def budget(self) -> Budget:
        """What the run may spend."""
        return Budget(
            self.rounds,
            self.minutes,
            self.candidates,
            usd=self.usd,
            tokens=self.tokens,
            baselines=self.timing.baselines,
            baseline_minutes=self.timing.baseline_minutes,
        )

    @property
    def authors(self) -> tuple[str, ...]:
        """Who writes kernels, in the order in which they seed."""
        return AUTHORS[self.author]
