"""What `kmem bench` can be told: BenchOptions."""

from dataclasses import dataclass
from pathlib import Path

import click

from kmem.cli.options.authors import author_option
from kmem.cli.options.baselines import BaselineOptions
from kmem.cli.options.budget import minutes_option, rounds_option
from kmem.cli.options.contract import ContractOptions, memory_option, target_option
from kmem.cli.options.executor import ExecutorOptions
from kmem.cli.options.models import ModelOptions
from kmem.cli.options.records import nested, option
from kmem.records import Strategy


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `kmem bench`, for a bench and for the recording of landscapes."""

    level: int | None = option(
        "--level",
        type=click.IntRange(min=1),
        help="Level of KernelBench checkouts; default: all levels.",
    )
    only: tuple[str, ...] = option(
        "--only",
        metavar="GLOB",
        multiple=True,
        help="Only problems whose name matches, such as '1?_*'; may be repeated.",
    )
    first: int | None = option(
        "--first", type=click.IntRange(min=1), help="Only the first so many problems."
    )
    sample: int | None = option(
        "--sample",
        type=click.IntRange(min=1),
        help="Only so many of the problems, drawn at random: the same each time, and a larger "
        "sample holds a smaller one.",
    )
    contract: ContractOptions = nested(ContractOptions)
    target: str | None = target_option()
    memory_mode: str = memory_option()
    rounds: int = rounds_option("Rounds after the first, for each problem.")
    minutes: float = minutes_option("--minutes-per-problem", "Wall-clock budget of each")
    candidates: int = option(
        "--candidates",
        type=click.IntRange(min=1),
        default=12,
        show_default=True,
        help="Candidates of a round, about.",
    )
    strategy: str = option(
        "--strategy",
        type=click.Choice([item.value for item in Strategy]),
        default=Strategy.BANDIT.value,
        show_default=True,
        help="How a round's candidates are shared out; best-of-n is the control that search must "
        "beat, random-skills the control that prescriptions must.",
    )
    author: str = author_option()
    models: ModelOptions = nested(ModelOptions)
    usd: float | None = option(
        "--usd",
        type=click.FloatRange(min=0),
        help="Most that the language models of the whole bench may cost; it then ends with the "
        "problems that it has. Default: no limit.",
    )
    timing: BaselineOptions = nested(BaselineOptions)
    root: Path | None = option(
        "--resume",
        metavar="DIR",
        type=click.Path(path_type=Path),
        envvar="KMEM_BENCH",
        help="Directory of results to go on with, or to make; default: bench-<date> in KMEM_OUT, "
        "or in runs/.",
    )
    retry_failed: bool = option(
        "--retry-failed", is_flag=True, help="Run again what failed in the directory of --resume."
    )
    control: Path | None = option(
        "--control",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Be the control arm of the bench in DIR: best-of-n on each of its problems, by as "
        "many measurements as its run made. Then --compare the two.",
    )
    compare: tuple[Path, Path] | None = option(
        "--compare",
        nargs=2,
        metavar="A B",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Run nothing: pair the rows of two benches, problem by problem, with intervals.",
    )
    jobs: int = option(
        "--jobs",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Problems at once on each GPU: one is traced and compiled while another is measured. "
        "Without GPUs: problems at once.",
    )
    gpus: int | None = option(
        "--gpus",
        type=click.IntRange(min=0),
        help="GPUs to spread the problems over, of this machine or of the cluster; default: one, "
        "or with another executor all of the cluster. With --record each problem is measured on "
        "one of them.",
    )
    where: ExecutorOptions = nested(ExecutorOptions)
    ahead: int = option(
        "--compile-ahead",
        metavar="N",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="So many workers more, without a GPU, compile what problems begin with before their "
        "turn comes. Not with slurm.",
    )
    sync: bool = option(
        "--sync",
        is_flag=True,
        help="Then share what was measured, as kmem memory sync does with the remote it remembers.",
    )
    record: Path | None = option(
        "--record",
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="KMEM_RECORD",
        help="Do not optimise: measure whole knob landscapes into DIR, for kmem memory ablate. "
        "PATH may then be a suite file too.",
    )
    listed: bool = option(
        "--list",
        is_flag=True,
        help="With --record: record nothing, but list what is recorded, what is missing, and how "
        "long that takes, in the order in which it would be recorded.",
    )
    within: float | None = option(
        "--within",
        metavar="MINUTES",
        type=click.FloatRange(min=0, min_open=True),
        help="With --record, on this machine: end everything after so many minutes. Graphs of "
        "which nothing is recorded come first, and the same command goes on.",
    )
    settings: int = option(
        "--settings",
        type=click.IntRange(min=1),
        default=40,
        show_default=True,
        help="With --record: knob settings measured of each problem; all, if it has no more.",
    )
