"""Out of device memory: whether a kernel wants more than the GPU has, or others hold it.

torch says in its error what it had allocated and what it wanted on top. Beside what the judge keeps
that is what judging the kernel takes of a GPU that nobody else uses.
"""

import re

from kmem.host.memory_share import USABLE
from kmem.problem.costs.footprint import in_units

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
#: Source: the text of torch.OutOfMemoryError, c10/cuda/CUDACachingAllocator.cpp.
_SIZES = (
    re.compile(r"Tried to allocate ([\d.]+) (bytes|[KMG]iB)"),
    re.compile(r"([\d.]+) (bytes|[KMG]iB) is allocated by PyTorch"),
)


def wanted_bytes(log: str) -> int:
    """What a process that ran out of device memory had and wanted; 0 if its error does not say."""
    found = [size.search(log) for size in _SIZES]
    return sum(int(float(match[1]) * _UNITS[match[2]]) for match in found if match)


def describe_neighbours(log: str, own_bytes: int, total_bytes: int) -> str:
    """That others hold the memory that a kernel wanted; empty if the GPU has not so much.

    An error of the driver tells no sizes; then others hold it.

    Args:
        log: of the kernel's failure.
        own_bytes: of device memory that the judge itself has.
        total_bytes: of device memory.
    """
    needed = own_bytes + wanted_bytes(log)
    if needed > USABLE * total_bytes:
        return ""
    return (
        f"other processes hold the GPU's memory: to judge this kernel takes {in_units(needed)} of "
        f"{in_units(total_bytes)}, and they left less while it had the GPU to itself; no verdict, "
        f"judge it again with fewer beside it"
    )
