"""Compile the kernels of a written problem: each becomes a point that waits for its verdict."""

import math
from dataclasses import dataclass

from kmem.learning.landscape import Point, make_point
from kmem.learning.recording.request import Asked
from kmem.learning.recording.write import Written
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.profile.estimate import estimate_kernel_ms
from kmem.records import Bound, Kernel

_COMPILE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A written problem ready to be judged: its kernels are compiled and in the cache."""

    written: Written
    points: tuple[Point, ...]  # in the order of the kernels, INTERRUPTED until they are judged


def compile_written(written: Written, asked: Asked, compilers: CompileProcesses) -> Prepared:
    """Compile what has no verdict yet."""
    fresh = [kernel for kernel, _ in written.kernels if kernel.hash not in written.known]
    with CompilePool(written.traced, processes=compilers) as pool:
        reports = {
            report.kernel: report for report in pool.compile(fresh, timeout_s=_COMPILE_TIMEOUT_S)
        }
    points = [
        written.known.get(kernel.hash)
        or compiled_point(kernel, estimated_ms, reports[kernel.hash], written.traced.bound, asked)
        for kernel, estimated_ms in written.kernels
    ]
    return Prepared(written, tuple(points))


def compiled_point(
    kernel: Kernel,
    estimated_ms: float | None,
    report: CompileReport,
    bound: Bound | None,
    asked: Asked,
) -> Point:
    """The point of a compiled kernel; without a GPU its time is estimated from the report."""
    if not asked.present:
        estimated_ms = math.inf
        if report.status is CompileStatus.OK:
            estimated_ms = estimate_kernel_ms(report.launches, bound, asked.device)
    return make_point(kernel.hash, kernel.choices, kernel.flags, estimated_ms, report)
