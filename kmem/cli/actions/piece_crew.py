"""The workers of an executor that the pieces of a whole model run on."""

from collections.abc import Iterator
from contextlib import contextmanager

from kmem.away.home import Home
from kmem.cli.actions.crews import (
    ask_for_card,
    count_gpus,
    crew_directory,
    find_executor,
    known_ceilings,
    open_desk,
)
from kmem.cli.options.executor import ExecutorOptions
from kmem.devices import resolve_target
from kmem.engines.executor import Wanted
from kmem.errors import ExecutorError
from kmem.plugins import Registry
from kmem.whole.trying import PieceCrew


@contextmanager
def open_piece_crew(
    where: ExecutorOptions, at_once: int | None, target: str | None, registry: Registry
) -> Iterator[PieceCrew]:
    """Open a crew whose GPUs are like the one of this machine, or that has none if there is none.

    Args:
        at_once: pieces that are tried at once; None: as many as the cluster has GPUs, or one.
        target: a device to write for, which needs no GPU.

    Raises:
        ExecutorError: if the crew cannot be opened, or has other GPUs.
        TargetError: if there is no GPU here and no target.
    """
    executor = find_executor(registry, where)
    device, present = resolve_target(target)
    gpus = count_gpus(executor, where, at_once) if present else 0
    if present and not gpus and where.executor == "slurm":
        gpus = 1
    if present and not gpus:
        raise ExecutorError(
            "The cluster has no GPU, and the whole is timed on the one here; run without "
            "--executor, or with a --target that is not here"
        )
    with crew_directory() as place:
        wanted = Wanted(gpus, 0 if gpus else at_once or 1, address=where.address, directory=place)
        home = Home(place)
        with open_desk(executor, wanted, home.close) as desk:
            reference = ask_for_card(desk) if gpus else None
            if reference is not None and reference.device.name != device.name:
                raise ExecutorError(
                    f"The whole is timed here, on {device.full_name}, and its pieces would be on "
                    f"{reference.device.full_name}; run kmem on a machine with one of those"
                )
            yield PieceCrew(
                desk,
                home,
                bool(gpus),
                gpus or at_once or 1,
                reference.card if reference is not None else None,
                known_ceilings(reference),
            )
