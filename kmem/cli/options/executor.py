"""On which machines a command works: ExecutorOptions."""

from dataclasses import dataclass

from kmem.cli.options.records import option


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """The options of every command that may work on other machines."""

    executor: str = option(
        "--executor",
        metavar="NAME",
        default="local",
        show_default=True,
        help="Where to work: local, ray (pip install 'kmem[ray]'), slurm ('kmem[slurm]'), or one "
        "of a plugin.",
    )
    address: str = option(
        "--address",
        default="auto",
        show_default=True,
        help="Of the cluster: for ray that of its head, auto (the one that runs here), or local "
        "(one that is started here and ended at the end); for slurm options of sbatch such as "
        "'partition=gpu,account=ml', or local.",
    )
