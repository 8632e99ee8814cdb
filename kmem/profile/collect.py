"""Choose a profiler and use it: the first that can run here, the next if it fails."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from kmem.errors import NotRegistered, ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.features.naming import name_operators
from kmem.problem.features.patterns import find_patterns
from kmem.problem.traced import TracedProblem
from kmem.profile.serving import add_served
from kmem.profile.structure import read_structure
from kmem.records import Kernel, Profile

logger = logging.getLogger(__name__)

AUTO = "auto"


def collect_profile(
    kernel: Kernel,
    traced: TracedProblem,
    profilers: Mapping[str, Profiler],
    executor: Executor,
    *,
    present: bool,
    name: str = AUTO,
) -> Profile:
    """Profile one forward of a kernel.

    The profile carries the problem's bound and operators, and the graph's values that each launch
    makes.

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
                f"Profiler {name} needs {traced.device.name} here; use --profiler static"
            )
        reason = profiler.unavailable_reason()
        if reason is not None:
            raise ProfilerError(f"Profiler {name} cannot run: {reason}")
        return _complete(profiler.profile(kernel, traced, executor), kernel, traced)
    reasons = []
    for profiler in profilers.values():
        if not present and not profiler.estimated:
            continue
        reason = profiler.unavailable_reason()
        if reason is None:
            try:
                return _complete(profiler.profile(kernel, traced, executor), kernel, traced)
            except ProfilerError as ex:
                reason = str(ex)
        logger.info("profiler %s passed over: %s", profiler.name, reason)
        reasons.append(f"{profiler.name}: {reason}")
    raise ProfilerError(
        f"No profiler can run for {traced.device.name}: "
        f"{'; '.join(reasons) or 'none is registered'}"
    )


def _complete(profile: Profile, kernel: Kernel, traced: TracedProblem) -> Profile:
    """A profile with what the problem and the kernel's text say of it."""
    profile = replace(profile, structure=read_structure(kernel))
    graph = traced.graphs.get("full")
    if graph is None:
        return replace(profile, bound=traced.bound)
    return replace(
        profile,
        launches=add_served(profile.launches, kernel.source, graph),
        bound=traced.bound,
        operators=name_operators(graph, (), traced.device, traced.contract),
        patterns=None if graph.opaque_reason is not None else find_patterns(graph),
    )
