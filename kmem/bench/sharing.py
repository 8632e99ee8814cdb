"""How the runs of a bench that work at once on one machine share its cores."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kmem.host.cores import POOL_VARIABLE, name_pool
from kmem.host.environment import CORES_VARIABLE

#: On a GPU a run compiles on so many times its share of the cores, of a pool for all: it compiles
#: in bursts, and for most of its time waits for the device. Source: 2 H200s, 32 cores, 10 runs at
#: once, 2026-11-22: 11.5 cores were busy on average.
_BURST_RATIO = 2


@dataclass(frozen=True, slots=True)
class Share:
    """What each run gets of the machine."""

    environment: Mapping[str, str]  # what is not in this process's own already
    crowded: float  # runs at once over cores, at least 1


def share_cores(directory: Path, gpus: int, jobs: int) -> Share:
    """What each run gets where `jobs` are at work on each GPU, or in all without one.

    Args:
        directory: the bench's, where the runs keep their pool of cores.
    """
    runs, every = jobs * max(1, gpus), len(os.sched_getaffinity(0))
    if runs == 1:
        return Share({}, 1.0)
    cores = max(1, every // runs)
    # beside a GPU each run has a process of its own at work, which nothing holds up
    pool = max(1, every - min(runs, every // 2)) if gpus else every
    bursts = min(pool, _BURST_RATIO * cores) if gpus else cores
    plan = {
        CORES_VARIABLE: str(bursts),
        "OMP_NUM_THREADS": str(cores),
        POOL_VARIABLE: name_pool(directory / "cores", pool),
    }
    told = {name: value for name, value in plan.items() if name not in os.environ}
    return Share(told, max(1.0, runs / every))
