"""What is to be recorded of a problem, on which device, and for how long at most."""

from dataclasses import dataclass
from pathlib import Path

from kmem.learning.landscape import Header
from kmem.records import Contract, Device, Problem


@dataclass(frozen=True, slots=True)
class Asked:
    """What to record: on which device, how many settings a problem, judged for how long at most.

    `present` says whether the device is here.
    """

    device: Device
    present: bool
    contract: Contract
    settings: int
    seed: int
    minutes: float  # to judge one problem
    jobs: int  # problems judged at once
    card: str | None = None  # the card that all figures are to come from, as JSON
    ceilings: str | None = None  # the device as its rates were measured, as JSON


def is_same_work(header: Header, problem: Problem, asked: Asked) -> bool:
    """Whether a landscape is of this problem, on this device, with these settings.

    A device's rates are measured anew each time, so only its name counts.
    """
    found = (
        header.problem.hash,
        header.device.full_name,
        header.contract,
        header.estimated,
        header.seed,
        header.settings,
    )
    return found == (
        problem.hash,
        asked.device.full_name,
        asked.contract,
        not asked.present,
        asked.seed,
        asked.settings,
    )


def cache_of(scratch: Path) -> Path:
    """The directory of compiled kernels and of the GPU's lock, which all lanes share.

    It is kept until everything is recorded.
    """
    return scratch / "cache"
