"""Try the compile processes on a kernel of three lines, for `kmem doctor`."""

import tempfile
from pathlib import Path

from kmem.errors import ProfilerError
from kmem.problem.traced import untraced_problem
from kmem.profile.compile.pool import compile_kernels
from kmem.profile.compile.report import CompileStatus, last_line
from kmem.records import Contract, Device, Kernel, Problem

_PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.rand(1024)]
"""

_KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def add_one(source, result, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + offsets, tl.load(source + offsets) + 1)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        result = torch.empty_like(x)
        add_one[(8,)](x, result, BLOCK=128)
        return result
"""


def try_compiling(device: Device) -> str:
    """Compile for a device, with an empty cache, and say what came out.

    Raises:
        ProfilerError: if it does not work, with the compiler's last line.
    """
    with tempfile.TemporaryDirectory(prefix="kmem-selftest-") as cache:
        problem = Problem("selftest", "selftest.py", _PROBLEM)
        (report,) = compile_kernels(
            [Kernel(_KERNEL)],
            untraced_problem(problem, Contract(), device),
            processes=1,
            cache_dir=Path(cache),
            timeout_s=120,
        )
    if report.status is not CompileStatus.OK:
        raise ProfilerError(f"Compiling for {device.name} fails: {last_line(report)}")
    registers = report.launches[0].metrics["static__registers_per_thread"]
    return (
        f"compiles for {device.name} ({device.arch}) without a GPU: a test kernel takes "
        f"{registers:.0f} registers, {report.seconds:.1f} s"
    )
