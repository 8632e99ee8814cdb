"""The suite of `Profiler`: the built-in ones pass it, and each way to break it is named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kmem.devices import named_target
from kmem.engines.local import LocalExecutor
from kmem.errors import ProfilerError
from kmem.interfaces import Executor, Profiler
from kmem.problem.traced import TracedProblem, untraced_problem
from kmem.profile.cupti import CuptiProfiler
from kmem.profile.ncu import NcuProfiler
from kmem.profile.static import StaticProfiler
from kmem.records import Contract, Kernel, Launch, Problem, Profile
from kmem.testing import check_profiler

SOURCE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0

def get_inputs():
    return [torch.randn(4096)]
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + columns, mask=columns < n)
    tl.store(y_ptr + columns, x * 2.0, mask=columns < n)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
DOUBLE = untraced_problem(Problem("double", "double.py", SOURCE), Contract(), named_target("h200"))


def check(profiler: Profiler) -> Profile | None:
    return check_profiler(profiler, Kernel(KERNEL), DOUBLE, LocalExecutor())


@pytest.mark.slow  # starts compile processes
def test_the_static_profiler_keeps_the_contract() -> None:
    profile = check(StaticProfiler())
    assert [launch.name for launch in profile.launches] == ["double_kernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("profiler", [CuptiProfiler(), NcuProfiler()], ids=lambda it: it.name)
def test_the_profilers_of_a_gpu_keep_the_contract(profiler: Profiler) -> None:
    check(profiler)


@pytest.mark.gpu
def test_counters_of_equal_launches_are_read_once() -> None:
    twice = KERNEL.replace("return y\n", "return self.again(x, y).sin()\n")
    twice += """
    def again(self, x, y):
        for _ in range(40):
            double_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""
    profiler = NcuProfiler()
    if profiler.unavailable_reason() is not None:
        pytest.skip("no ncu here")
    profile = profiler.profile(Kernel(twice), DOUBLE, LocalExecutor())
    kernels = [launch for launch in profile.launches if launch.name == "double_kernel"]
    assert len(kernels) == 41 and all(each == kernels[0] for each in kernels)
    assert kernels[0].metrics and kernels[0].grid == (16, 1, 1)


@pytest.mark.parametrize("profiler", [CuptiProfiler(), NcuProfiler()], ids=lambda it: it.name)
def test_a_profiler_that_cannot_run_here_says_why(profiler: Profiler) -> None:
    if profiler.unavailable_reason() is None:
        pytest.skip("it can run here")
    assert check(profiler) is None


class Recorded(Profiler):
    """Keeps the contract: a kernel that launches something has one launch."""

    name = "recorded"
    estimated = False

    def __init__(
        self,
        change: Callable[[Profile], Profile] = lambda profile: profile,
        *,
        reason: str | None = None,
        refuses: bool = True,
    ) -> None:
        self._change = change
        self._reason = reason
        self._refuses = refuses

    def unavailable_reason(self) -> str | None:
        return self._reason

    def profile(self, kernel: Kernel, traced: TracedProblem, executor: Executor) -> Profile:
        if self._refuses and "triton.jit" not in kernel.source:
            raise ProfilerError("the module does not import; see its log")
        launch = Launch("double_kernel", 0.01, (16, 1, 1), (128, 1, 1), {"dram__bytes.sum": 8.0})
        return self._change(Profile(kernel.hash, self.name, traced.device.name, False, (launch,)))


def test_a_profiler_that_keeps_the_contract_passes() -> None:
    assert check(Recorded()).kernel == Kernel(KERNEL).hash


def changed_launch(**changes: object) -> Callable[[Profile], Profile]:
    return lambda profile: replace(profile, launches=(replace(profile.launches[0], **changes),))


@pytest.mark.parametrize(
    ("profiler", "message"),
    [
        (Recorded(reason="no GPU\nhere"), "is one line"),
        (Recorded(lambda profile: replace(profile, kernel="")), "a profile names its kernel"),
        (Recorded(lambda profile: replace(profile, estimated=True)), "whether it is estimated"),
        (Recorded(lambda profile: replace(profile, launches=())), "every launch of the forward"),
        (Recorded(changed_launch(name="")), "the name of a launch must not be empty"),
        (Recorded(changed_launch(duration_ms=-1.0)), "duration_ms is a time or None, not -1.0"),
        (Recorded(changed_launch(grid=(16,))), "a grid is three sizes or None"),
        (
            Recorded(changed_launch(metrics={"dram__bytes.sum": float("nan")})),
            "a counter that is missing is absent, never dram__bytes.sum = nan",
        ),
        (Recorded(refuses=False), "must be refused with ProfilerError"),
    ],
)
def test_a_profiler_that_breaks_the_contract_is_told_how(profiler: Profiler, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(profiler)
