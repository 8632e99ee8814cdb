"""What is compiled for a device is what the interpreter proved: kernels, constants, arguments."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import triton
from corpus import problems
from module_problems import problem, recipe

from kmem.devices import named_target
from kmem.host.kernel_identity import describe_globals, identify_function
from kmem.measure.judge import Judge
from kmem.measure.settings import JudgeSettings
from kmem.problem.traced import TracedProblem
from kmem.profile.compile.pool import CompileProcesses
from kmem.records import Contract, Kernel, Measurement, Problem, Purity, Status, Workload
from kmem.run.evaluation.compiling import KernelCompiler
from kmem.testing import emit_source, trace_source

pytestmark = pytest.mark.usefixtures("shared_template")

HEAD = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

"""
KERNEL = """
@triton.jit
def scale_relu(x_ptr, y_ptr, n, scale, flag, FAST: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n) * scale
    if {without}:
        tl.store(y_ptr + o, x, mask=o < n)
    else:
        tl.store(y_ptr + o, tl.where(x < 0.0, 0.0, x), mask=o < n)

"""
MODULE = """
class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = x.contiguous()
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 128),)
        {launch}
        return y
"""
LAUNCH = "scale_relu[grid](x, y, x.numel(), self.scale, {flag}, FAST={fast}, BLOCK=128)"


def candidate(
    before: str = "", *, without: str = "FAST", flag: str = "0", fast: str = "False", end: str = ""
) -> str:
    """Leaves the maximum out where it is told to."""
    launch = LAUNCH.format(flag=flag, fast=fast)
    kernel = KERNEL.format(without=without)
    return HEAD + before + kernel + end + MODULE.format(launch=launch)


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileProcesses]:
    with CompileProcesses(1, tmp_path_factory.mktemp("triton")) as processes:
        yield processes


@pytest.fixture
def verify(compilers: CompileProcesses, tmp_path: Path) -> Callable[..., Measurement]:
    return partial(verdict, compilers, tmp_path)


def verdict(
    compilers: CompileProcesses,
    place: Path,
    problem: str,
    source: str,
    purity: Purity = Purity.TRITON,
    small: Workload | None = None,
) -> Measurement:
    traced = TracedProblem(
        Problem("small", "<small>", problem),
        Contract(purity=purity),
        named_target("h200"),
        {"full": Workload("full")} | ({"small": small} if small else {}),
        {},
        None,
    )
    settings = JudgeSettings(seed=1, gpu=False, work_dir=place, cache_dir=place / "cache")
    with (
        KernelCompiler(traced, lambda _: None, processes=compilers) as compiler,
        Judge(traced, settings, estimate_ms=lambda _: 1.0, compile_at=compiler.compile_at) as judge,
    ):
        return judge.verify(Kernel(source), ())


IS_COMPILED = "not triton.knobs.runtime.interpret"
OTHER = KERNEL.format(without="FAST").replace("tl.where(x < 0.0, 0.0, x)", "x")


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (candidate(fast=IS_COMPILED), "drawn, with FAST as on the target|normal, with FAST"),
        (candidate(fast="isinstance(scale_relu, triton.JITFunction)"), "with FAST as on the"),
        (candidate(fast="x.data_ptr() == 0"), "with FAST as on the target"),
        (candidate(without="flag > 0", flag="int(x.data_ptr() == 0)"), "with flag as on the"),
        (
            candidate(f"FAST_HERE = tl.constexpr({IS_COMPILED})\n", without="FAST_HERE"),
            "with global FAST_HERE as on the target",
        ),
        (
            candidate(end=f"if {IS_COMPILED}:\n" + OTHER.replace("\n", "\n    ") + "\n"),
            "scale_relu is another function",
        ),
    ],
    ids=["constant", "type", "address", "argument", "global", "redefined"],
)
def test_a_kernel_that_is_another_one_on_a_device_is_refused(
    source: str, said: str, verify: Callable[..., Measurement]
) -> None:
    measurement = verify(problems.SCALE_RELU, source)
    assert measurement.status is not Status.PASSED
    assert any(each in measurement.log for each in said.split("|")), measurement.log


@pytest.mark.slow
def test_what_a_library_does_in_the_interpreter_alone_is_refused(
    verify: Callable[..., Measurement],
) -> None:
    before = """
@triton.jit
def carry(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=o < n), mask=o < n)

"""
    launch = """if x.data_ptr() != 0:
            x = torch.relu(x * self.scale)
        carry[grid](x, y, x.numel(), BLOCK=128)"""
    source = HEAD + before + MODULE.format(launch=launch)
    measurement = verify(problems.SCALE_RELU, source, Purity.LIBRARY)
    assert measurement.status is Status.WRONG_CONTRACT, measurement.log
    assert "in the interpreter aten.mul, aten.relu computes" in measurement.log


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "source",
    [
        # exact both ways
        candidate(without="scale > 1e30", fast=IS_COMPILED),
        candidate(without="flag > 1000000", flag="self.calls"),
    ],
    ids=["a constant that changes no value", "a count of calls"],
)
def test_arguments_that_change_nothing_may_differ(
    source: str, verify: Callable[..., Measurement]
) -> None:
    measurement = verify(problems.SCALE_RELU, source)
    assert measurement.status is Status.PASSED, measurement.log


def test_an_attribute_is_no_global_of_its_name() -> None:
    there: dict[str, Any] = {"tl": triton.language, "factor": 2}
    exec("def kernel(x):\n    return tl.math.exp(x) * factor", there)
    proved, arguments = identify_function(there["kernel"]), describe_globals(there["kernel"])
    assert arguments == {"global factor": "2"}
    there["math"] = triton.language.math  # as the interpreter leaves a file
    assert identify_function(there["kernel"]) == proved
    there |= {"math": 3, "exp": 4}
    assert describe_globals(there["kernel"]) == arguments
    there["tl"] = 5
    assert describe_globals(there["kernel"]) == {**arguments, "global tl": "5"}


@pytest.mark.slow
def test_a_shipped_kernel_that_asks_where_it_runs_passes(
    verify: Callable[..., Measurement],
) -> None:
    text = problem("torch.mm(x, x.t())", "torch.randn(33, 40, dtype=torch.bfloat16)")
    chosen, graph = recipe("tile-matmul"), trace_source(text)[1]
    (site,) = chosen.match(graph, Contract())
    tile = {"block_m": 16, "block_n": 16, "block_k": 16, "warps": 4, "stages": 3}
    settings = {**tile, "group": 2, "splits": 1}
    measurement = verify(text, emit_source(text, graph, [(chosen, site, settings)]))
    assert measurement.status is Status.PASSED, measurement.log


ROWS = """
import torch
import torch.nn as nn

rows = 4000
columns = 3000


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(rows, columns)]
"""
ROW_KERNEL = """
@triton.jit
def relu_rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < columns
    x = tl.load(x_ptr + tl.program_id(0) * columns + o, mask=m)
    y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    {more}
    tl.store(y_ptr + tl.program_id(0) * columns + o, y, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        block = {block}
        relu_rows[(x.numel() // columns,)](x, y, columns, BLOCK=block)
        return y
"""
BY_ROW = "triton.next_power_of_2(columns)"
# only at the full size
BY_ALL = f"{BY_ROW} * (2 if x.numel() > 10**7 else 1)"


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("more", "block", "said", "flags"),
    [
        ("y = tl.where(BLOCK == 4096, x, y)", BY_ROW, "with the constants of full size", ()),
        ("", BY_ROW, "", ()),
        ("", BY_ALL, "", ("constants_unproved",)),
    ],
)
def test_constants_of_the_full_size_are_run_at_a_size_that_an_interpreter_can_take(
    more: str, block: str, said: str, flags: tuple[str, ...], verify: Callable[..., Measurement]
) -> None:
    source = HEAD + ROW_KERNEL.format(more=more, block=block)
    small = Workload("small", (("rows", 5), ("columns", 58)))
    measurement = verify(ROWS, source, small=small)
    assert measurement.status is (Status.WRONG_VALUES if said else Status.PASSED), measurement.log
    assert said in measurement.log
    assert said or measurement.flags == flags
