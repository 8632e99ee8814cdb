"""Choose a profiler and use it: the first that can run here, the next if it fails."""

import logging
from collections.abc import Mapping

from kmem.errors import NotRegistered, ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.profile.target import ProfileTarget
from kmem.records import Kernel, Profile

logger = logging.getLogger(__name__)

AUTO = "auto"


def collect_profile(
    kernel: Kernel,
    target: ProfileTarget,
    profilers: Mapping[str, Profiler],
    executor: Executor,
    *,
    present: bool,
    name: str = AUTO,
) -> Profile:
    """Profile one forward of a kernel.

    Args:
        profilers: by name, best first.
        present: whether the device is here; if not, only profilers that estimate are asked.
        name: one profiler, or "auto" for the first that works.

    Raises:
        NotRegistered: for an unknown name.
        ProfilerError: if the named profiler cannot run, or with "auto" none can; the message has
            each one's remedy.
    """
    if name != AUTO:
        if name not in profilers:
            raise NotRegistered(f"No profiler named '{name}'. Registered: {', '.join(profilers)}")
        profiler = profilers[name]
        if not present and not profiler.estimated:
            raise ProfilerError(
                f"Profiler {name} needs {target.device.name} here; use --profiler static"
            )
        reason = profiler.unavailable_reason()
        if reason is not None:
            raise ProfilerError(f"Profiler {name} cannot run: {reason}")
        return _use(profiler, kernel, target, executor)
    reasons = []
    for profiler in profilers.values():
        if not present and not profiler.estimated:
            continue
        reason = profiler.unavailable_reason()
        if reason is None:
            try:
                return _use(profiler, kernel, target, executor)
            except ProfilerError as ex:
                reason = str(ex)
        logger.info("profiler %s passed over: %s", profiler.name, reason)
        reasons.append(f"{profiler.name}: {reason}")
    raise ProfilerError(
        f"No profiler can run for {target.device.name}: "
        f"{'; '.join(reasons) or 'none is registered'}"
    )


def _use(profiler: Profiler, kernel: Kernel, target: ProfileTarget, executor: Executor) -> Profile:
    return profiler.profile(
        kernel, target.problem, target.workload, target.contract, target.device, executor
    )
