"""The GPU for one process: a model is timed with the lease that every timing of kmem takes.

So several models may be made fast side by side on one card, and none disturbs what another times.
"""

from contextlib import AbstractContextManager
from functools import cache

import torch

from kmem.host.lease import GpuLease
from kmem.measure.resources import open_lease
from kmem.memory.location import default_db_path


@cache
def _lease() -> GpuLease:
    """This process's own, until it ends: a hold within another would wait for a second one's."""
    return open_lease(default_db_path().parent / "cache" / "locks", lambda text: None)


def gpu_alone() -> AbstractContextManager[None]:
    """Wait until nobody else times or checks on the GPU, and let nobody until the block ends.

    Raises ExecutorError: if the lock file cannot be made.
    """
    return _lease().hold(exclusive=True, purpose="a whole model")


def gpu_with_room() -> AbstractContextManager[None]:
    """As `gpu_alone`, and have the others give back the device memory that they merely keep."""
    return _lease().hold_with_room("a whole model that was out of memory")


def lacks_memory(error: Exception) -> bool:
    """Whether an error says that the device had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
