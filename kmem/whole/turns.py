"""The GPU for one process: a model is timed with the lease that every timing of kmem takes.

So several models may be made fast side by side on one card, and none disturbs what another times.
"""

import gc
import importlib
import sys
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from kmem.host.lease import GpuLease
from kmem.measure.resources import open_lease
from kmem.memory.location import default_db_path

_KMEM = Path(__file__).parent.parent
#: Where the files of the judge's worker lie, which import each other by bare names.
_WORKER = (str(_KMEM / "measure" / "worker"), str(_KMEM / "host"))
#: What errors of torch, its compiler and NVIDIA's libraries say of that.
_NO_MEMORY = ("out of memory", "ALLOC_FAILED")


def of_the_worker(name: str) -> ModuleType:
    """A module of the judge's worker, in this process.

    A model's own modules may have the same names: it finds them, before and after.
    """
    before = dict(sys.modules)
    hidden = {each for place in _WORKER for each in _modules_in(place)}
    for each in hidden & before.keys():
        del sys.modules[each]
    sys.path[:0] = _WORKER
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[: len(_WORKER)]
        for each in hidden & sys.modules.keys():
            del sys.modules[each]
        sys.modules.update({each: before[each] for each in hidden & before.keys()})


def _modules_in(directory: str) -> list[str]:
    return [file.stem for file in Path(directory).glob("*.py") if file.stem != "__init__"]


def _open() -> GpuLease:
    return open_lease(default_db_path().parent / "cache" / "locks", lambda text: None)


@cache
def _lease() -> GpuLease:
    """This process's own, until it ends: a hold within another would wait for a second one's."""
    return _open()


def gpu_alone() -> AbstractContextManager[None]:
    """Wait until nobody else times or checks on the GPU, and let nobody until the block ends.

    Raises ExecutorError: if the lock file cannot be made.
    """
    return _lease().hold(exclusive=True, purpose="a whole model")


def make_room() -> None:
    """Have this process and all others give back the device memory that they merely keep.

    The GPU is theirs again then: what needs the room may take minutes.
    """
    gc.collect()  # what failed may hold tensors in cycles
    with _lease().hold_with_room("a whole model that was out of memory"):
        pass


def tuning_in_turn() -> AbstractContextManager[None]:
    """Have the GPU alone whenever Inductor times alternatives; it compiles them beside others."""
    held: AbstractContextManager[None] = of_the_worker("tuning").tuning_in_turn(_open())
    return held


def lacks_memory(error: Exception) -> bool:
    """Whether an error says that the device had no memory left, or that this was its cause."""
    is_own = isinstance(error, torch.OutOfMemoryError)
    return is_own or any(text in str(error) for text in _NO_MEMORY)
