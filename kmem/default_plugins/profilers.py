"""The built-in profilers: ncu (counters), cupti (times and resources), static (no GPU)."""

from collections.abc import Callable

from kmem import hookimpl
from kmem.interfaces import Profiler
from kmem.profile.cupti import CuptiProfiler
from kmem.profile.ncu import NcuProfiler
from kmem.profile.static import StaticProfiler


@hookimpl
def register_profilers(register: Callable[[Profiler], None]) -> None:
    """Best first: `auto` takes the first that is available."""
    for profiler in (NcuProfiler(), CuptiProfiler(), StaticProfiler()):
        register(profiler)
