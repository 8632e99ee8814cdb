"""The GPU for one process: a model is timed with the lease that every timing of kmem takes.

So several models may be made fast side by side on one card, and none disturbs what another times.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kmem.measure.resources import open_lease
from kmem.memory.location import default_db_path


@contextmanager
def gpu_alone() -> Iterator[None]:
    """Wait until nobody else times or checks on the GPU, and let nobody until the block ends.

    Raises ExecutorError: if the lock file cannot be made.
    """
    locks = default_db_path().parent / "cache" / "locks"
    with (
        open_lease(locks, lambda text: None) as lease,
        lease.hold(exclusive=True, purpose="a whole model"),
    ):
        yield
