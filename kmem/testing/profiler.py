"""The suite of `kmem.interfaces.Profiler`.

Covered: what a profile must say of a kernel that runs, and that a kernel which does not is an error
with a remedy. Not covered: whether the figures are true.
"""

import math

from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.traced import TracedProblem
from kmem.records import Kernel, Launch, Profile
from kmem.testing.wording import check_line, check_name, check_reason

_BROKEN = Kernel('raise RuntimeError("a module that cannot be imported")\n')


def check_profiler(
    profiler: Profiler, kernel: Kernel, traced: TracedProblem, executor: Executor
) -> Profile | None:
    """Hold a profiler to its contract. One that cannot run here is held to saying why.

    Args:
        kernel: one that launches something.
        traced: the problem of the kernel; `kmem.problem.traced.trace_at_full_size` makes it.
        executor: where the profiler may run jobs.
    Returns: The profile of the kernel; None if the profiler cannot run here.
    Raises:
        AssertionError: naming what the contract says and the profiler does otherwise.
    """
    check_name(profiler.name)
    assert type(profiler.estimated) is bool, f"estimated is a bool, not {profiler.estimated!r}"
    reason = profiler.unavailable_reason()
    check_reason(reason)
    if reason is not None:
        return None
    profile = profiler.profile(kernel, traced, executor)
    said = (profile.kernel, profile.profiler, profile.device, profile.estimated)
    expected = (kernel.hash, profiler.name, traced.device.name, profiler.estimated)
    assert said == expected, (
        f"a profile names its kernel, profiler, device and whether it is estimated: {said}, "
        f"expected {expected}"
    )
    assert profile.launches, "a profile holds every launch of the forward, and there is none"
    for launch in profile.launches:
        _check_launch(launch)
    _check_broken(profiler, traced, executor)
    return profile


def _check_launch(launch: Launch) -> None:
    check_line(launch.name, "the name of a launch")
    if launch.duration_ms is not None:
        assert math.isfinite(launch.duration_ms) and launch.duration_ms >= 0, (
            f"{launch.name}: duration_ms is a time or None, not {launch.duration_ms}"
        )
    for what, sizes in (("grid", launch.grid), ("block", launch.block)):
        assert sizes is None or (len(sizes) == 3 and all(size >= 1 for size in sizes)), (
            f"{launch.name}: a {what} is three sizes or None, not {sizes}"
        )
    for counter, value in launch.metrics.items():
        assert isinstance(value, int | float) and math.isfinite(value), (
            f"{launch.name}: a counter that is missing is absent, never {counter} = {value}"
        )


def _check_broken(profiler: Profiler, traced: TracedProblem, executor: Executor) -> None:
    try:
        profiler.profile(_BROKEN, traced, executor)
    except ProfilerError as ex:
        check_line(str(ex), "an error with its remedy")
    else:
        raise AssertionError("a kernel that does not run must be refused with ProfilerError")
