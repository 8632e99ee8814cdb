"""One module's kernels compiled by several processes at once: real Triton, real ptxas."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.problem.traced import untraced_problem
from kmem.profile.compile.pool import CompilePool, CompileProcesses
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.records import Contract, Kernel, Problem

pytestmark = pytest.mark.slow  # starts compile processes

PROBLEM = Problem(
    "chain",
    "chain.py",
    """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x.exp()
def get_inputs():
    return [torch.rand(1024)]
""",
)
TARGET = untraced_problem(PROBLEM, Contract(), named_target("h100"))
KERNELS = 9
#: Whoever compiles a kernel leaves a line with its number and the process. Triton looks at what
#: names stand for, and not at what a call returns.
KERNEL = """
@triton.constexpr_function
def note_{number}():
    process = __import__("os").getpid()
    with __import__("io").open({place!r}, "a") as file:
        file.write(f"{number} {{process}}\\n")
    __import__("time").sleep(0.2)
    return {number}

@triton.jit
def kernel_{number}(x):
    tl.store(x + tl.program_id(0), {value})
"""
MODULE = """
import torch
import triton
import triton.language as tl
{kernels}
class ModelNew(torch.nn.Module):
    def forward(self, x):
        result = torch.empty_like(x)
{launches}
        return result
"""


def write_module(place: Path, *, bad: int | None = None, catches: bool = False) -> str:
    """A module of several kernels, one of which may not compile."""
    kernels, launches = "", ""
    for number in range(KERNELS):
        value = "tl.no_such_function()" if number == bad else f"note_{number}()"
        kernels += KERNEL.format(number=number, place=str(place), value=value)
        launch = f"kernel_{number}[(1024,)](result)"
        if catches and number == bad:
            launch = f"try: {launch}\n        except Exception: result = torch.exp(x)"
        launches += f"        {launch}\n"
    return MODULE.format(kernels=kernels, launches=launches)


class Processes(CompileProcesses):
    """Compile processes that note how many cores were lent."""

    def __init__(self, count: int, cache_dir: Path) -> None:
        super().__init__(count, cache_dir)
        self.lent: list[int] = []

    @contextmanager
    def _lend(self, wanted: int) -> Iterator[int]:
        with super()._lend(wanted) as cores:
            self.lent.append(cores)
            yield cores


def compile_module(source: str, processes: CompileProcesses) -> CompileReport:
    pool = CompilePool(TARGET, processes=processes, read_binaries=False)
    return pool.compile([Kernel(source)], timeout_s=60)[0]


def test_idle_cores_compile_a_modules_kernels_each_once_and_the_report_is_the_same(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "cache" / "notes"  # where the processes may write
    source = write_module(notes)
    with Processes(2, tmp_path / "cache") as processes:
        together = compile_module(source, processes)
        assert together.status is CompileStatus.OK, together.log
        compiled = [line.split() for line in notes.read_text().splitlines()]
        assert sorted(int(number) for number, _ in compiled) == list(range(KERNELS))
        by_process = Counter(process for _, process in compiled)
        assert len(by_process) == 2
        assert min(by_process.values()) > 1
        again = compile_module(f"{source}\n# once more\n", processes)
        assert len(notes.read_text().splitlines()) == KERNELS
    assert processes.lent == [1, 1]
    with Processes(1, tmp_path / "other") as processes:
        alone = compile_module(source.replace(str(notes), str(tmp_path / "other" / "n")), processes)
    assert processes.lent == [0]
    assert [launch.name for launch in together.launches] == [f"kernel_{n}" for n in range(KERNELS)]
    assert together.launches == alone.launches == again.launches
    assert together.ptx_hash == alone.ptx_hash == again.ptx_hash


def test_what_cannot_be_compiled_is_reported_as_where_it_is_launched(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Processes(2, cache) as processes:
        failed = compile_module(write_module(cache / "notes", bad=5), processes)
        caught = compile_module(write_module(cache / "notes", bad=5, catches=True), processes)
    assert failed.status is CompileStatus.FAILED
    assert ", in forward\n" in failed.log, "where it was launched"
    assert "no_such_function" in failed.log
    assert [launch.name for launch in failed.launches] == [f"kernel_{n}" for n in range(5)]
    assert caught.status is CompileStatus.OK
    names = [launch.name for launch in caught.launches]
    assert names == [*(f"kernel_{n}" for n in range(5)), "aten.exp.default"] + [
        f"kernel_{n}" for n in range(6, KERNELS)
    ]


def test_cores_are_lent_once_and_to_nobody_while_every_process_compiles(tmp_path: Path) -> None:
    with CompileProcesses(3, tmp_path) as processes:
        with processes._lend(2) as first, processes._lend(5) as second:
            assert (first, second) == (2, 1)
        busy = [processes._idle.get() for _ in range(2)]
        with processes._lend(5) as left:
            assert left == 1
        for process in busy:
            processes._idle.put(process)
