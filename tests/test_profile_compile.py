"""Compiling without a GPU: real Triton, real ptxas, in worker processes."""

import math
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.devices import named_target
from kmem.errors import ProblemError, ProfilerError
from kmem.problem.traced import untraced_problem
from kmem.profile.compile.pool import (
    CompilePool,
    CompileProcesses,
    compile_kernels,
    default_cache_dir,
)
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.profile.compile.sass import disassemble
from kmem.profile.compile.target_driver import tool_paths
from kmem.profile.compile.ttir import list_products
from kmem.records import Contract, Kernel, Precision, Problem

pytestmark = pytest.mark.slow  # starts compile processes

PROBLEM = Problem(
    "linear_exp",
    "linear_exp.py",
    """
import torch
SIDE = 256
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(SIDE, SIDE)
    def forward(self, x):
        return torch.exp(self.linear(x))
def get_inputs():
    return [torch.rand(SIDE, SIDE)]
""",
)
TARGET = untraced_problem(PROBLEM, Contract(), named_target("h200"))
CANDIDATE = """
import torch
import triton
import triton.language as tl

@triton.jit
def exponential(source, result, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    tl.store(result + offsets, tl.exp(tl.load(source + offsets, mask=inside)), mask=inside)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
    def forward(self, x):
        print("this must not break the channel")
        hidden = self.linear(x)
        result = torch.empty_like(hidden)
        count = hidden.numel()
        grid = lambda meta: (triton.cdiv(count, meta["BLOCK"]),)
        exponential[grid](hidden, result, count, BLOCK=1024, num_warps=4)
        return result
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton-cache")


@pytest.fixture(scope="module")
def reports(cache: Path) -> list[CompileReport]:
    sources = [
        CANDIDATE,
        "\n\n# the same, further down\n" + CANDIDATE,
        CANDIDATE.replace("BLOCK=1024", "BLOCK=2048"),
        CANDIDATE.replace(
            'print("this must not break the channel")', "raise ValueError('no idea')"
        ),
        CANDIDATE.replace('print("this must not break the channel")', "import os; os._exit(7)"),
        CANDIDATE.replace("torch.empty_like(hidden)", "torch.full_like(hidden, x[0, 0].item())"),
        "def broken(:",
        CANDIDATE.replace("tl.exp(", "tl.no_such_function("),
        CANDIDATE.replace(
            'print("this must not break the channel")',
            "x, places = x.clone(), (x[1:].data_ptr(), x.view(-1)[1:].data_ptr())\n"
            "        assert places == (0, 4), places",
        ),
        CANDIDATE.replace(
            "return result", "kept, self.kept = getattr(self, 'kept', None), result; return result"
        ).replace("exponential[grid]", "if not hasattr(self, 'kept'): exponential[grid]"),
    ]
    return compile_kernels(
        [Kernel(source) for source in sources],
        TARGET,
        processes=1,
        cache_dir=cache,
        timeout_s=60,
    )


def test_what_is_launched_at_the_first_call_alone_is_compiled_and_not_counted(
    reports: list[CompileReport],
) -> None:
    report = reports[-1]
    assert report.status is CompileStatus.OK, report.log
    assert report.first_kernels == reports[0].first_kernels == ("exponential",)
    assert [launch.name for launch in report.launches] == ["aten.addmm.default"]
    assert report.ptx_hash == reports[0].ptx_hash


def test_kernels_disassembled_together_read_as_each_does_alone(
    reports: list[CompileReport], cache: Path, tmp_path: Path
) -> None:
    cubins = [file.read_bytes() for file in sorted(cache.rglob("*.cubin"))]
    assert len({*cubins}) > 1
    file, (_, nvdisasm) = tmp_path / "code", tool_paths()
    for cubin, listing in zip(cubins, disassemble(cubins, 90, nvdisasm, file), strict=True):
        file.write_bytes(cubin)
        command = [nvdisasm, "-c", "-ndf", str(file)]
        alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found, expected = (
            re.findall(r"\*/ +(@\S+ +)?([A-Z]\S*)", text) for text in (listing, alone)
        )
        assert found == expected and ("", "EXIT") in found


def test_a_part_of_a_tensor_lies_nowhere_too_and_keeps_how_it_divides(
    reports: list[CompileReport],
) -> None:
    assert reports[-2].status is CompileStatus.OK, reports[-2].log


def test_a_module_compiles_without_a_gpu_and_every_launch_is_recorded(
    reports: list[CompileReport],
) -> None:
    report = reports[0]
    assert report.status is CompileStatus.OK, report.log
    assert [launch.name for launch in report.launches] == ["aten.addmm.default", "exponential"]
    assert report.vendor_ops == ("aten.addmm.default",)
    launch = report.launches[1]
    assert (launch.grid, launch.block) == ((64, 1, 1), (128, 1, 1))
    assert launch.metrics["constexpr__BLOCK"] == 1024
    # 1024 elements over 128 threads, one MUFU.EX2 each
    assert launch.metrics["static__special"] == 8
    assert (
        launch.metrics["static__global_load_bytes"] == 32
        and launch.metrics["static__wide_accesses"] == 4
    )
    assert launch.metrics["static__stack_bytes_per_thread"] == 0
    assert launch.metrics["static__argument_bytes"] == 2 * 256 * 256 * 4
    assert launch.metrics["static__occupancy_pct"] == 100
    assert launch.metrics["static__waves"] == 64 / (16 * 132)


def test_the_same_code_has_the_same_hash_wherever_it_stands(reports: list[CompileReport]) -> None:
    assert reports[0].ptx_hash == reports[1].ptx_hash
    assert reports[0].ptx_hash != reports[2].ptx_hash


def test_what_a_candidate_raises_is_its_report(reports: list[CompileReport]) -> None:
    assert reports[3].status is CompileStatus.FAILED and "ValueError: no idea" in reports[3].log
    assert reports[6].status is CompileStatus.FAILED and "SyntaxError" in reports[6].log
    assert reports[7].status is CompileStatus.FAILED and "no_such_function" in reports[7].log


def test_a_crash_is_one_report_and_the_pool_goes_on(reports: list[CompileReport]) -> None:
    assert (
        reports[4].status is CompileStatus.FAILED and "the compile process died" in reports[4].log
    )
    assert reports[5].status is not CompileStatus.FAILED


def test_a_forward_that_looks_at_its_data_is_not_called_broken(
    reports: list[CompileReport],
) -> None:
    assert reports[5].status is CompileStatus.NEEDS_VALUES
    assert reports[5].ptx_hash is None


def test_a_second_process_finds_everything_in_the_disk_cache(
    reports: list[CompileReport], cache: Path
) -> None:
    before = sorted(path for path in cache.rglob("*.cubin"))
    assert before
    (again,) = compile_kernels(
        [Kernel(CANDIDATE)],
        TARGET,
        processes=1,
        cache_dir=cache,
        timeout_s=60,
    )
    assert again.ptx_hash == reports[0].ptx_hash
    assert sorted(path for path in cache.rglob("*.cubin")) == before


def test_a_hang_is_one_report_and_the_pool_goes_on(cache: Path) -> None:
    hang = CANDIDATE.replace('print("this must not break the channel")', "while True: pass")
    done: list[str] = []
    with CompilePool(TARGET, processes=1, cache_dir=cache) as pool:
        pool.compile([Kernel(CANDIDATE)], timeout_s=60)
        (report,) = pool.compile(
            [Kernel(hang)], timeout_s=1.0, on_done=lambda report: done.append(report.log)
        )
        (after,) = pool.compile([Kernel(CANDIDATE)], timeout_s=60)
    assert report.status is CompileStatus.FAILED and "longer than 1 s" in report.log
    assert done == [report.log]
    assert after.status is CompileStatus.OK


class OneByOne(CompileProcesses):
    """Begins with what it is given when told to, one after the other, and compiles nothing."""

    def __init__(self, home: Path) -> None:
        super().__init__(1, home)
        self.may_begin, self.order = threading.Event(), []

    def submit(
        self, setup: str, source: str, timeout_s: float, deadline: float = math.inf
    ) -> Future:
        def answer() -> dict[str, object]:
            self.may_begin.wait(10)
            self.order.append(source)
            return {"status": "failed", "log": "no compiler", "seconds": 0.0}

        return self._threads.submit(answer)


def test_what_is_asked_for_now_is_compiled_before_what_was_begun_ahead(tmp_path: Path) -> None:
    first, second, third, mended = (Kernel(f"# {name}") for name in "abcd")
    with OneByOne(tmp_path) as processes:
        pool = CompilePool(TARGET, processes=processes)
        pool.begin([first, second, third], timeout_s=5.0)
        asking = threading.Timer(0.2, processes.may_begin.set)
        asking.start()
        pool.compile([mended, first], timeout_s=5.0)
        reports = pool.compile([second, third], timeout_s=5.0)
    assert processes.order == ["# a", "# d", "# b", "# c"]
    assert [report.kernel for report in reports] == [second.hash, third.hash]


def test_what_waits_in_one_pool_lets_another_pool_of_the_same_processes_pass(
    tmp_path: Path,
) -> None:
    first, second, third, urgent = (Kernel(f"# {name}") for name in "abcd")
    with OneByOne(tmp_path) as processes:
        pool, other = (CompilePool(TARGET, processes=processes) for _ in range(2))
        pool.begin([first, second, third], timeout_s=5.0)
        with pool.postponed():
            other.begin([urgent], timeout_s=5.0)
        threading.Timer(0.2, processes.may_begin.set).start()
        reports = pool.compile([first, second, third], timeout_s=5.0)
    assert processes.order == ["# a", "# d", "# b", "# c"]
    assert [report.kernel for report in reports] == [first.hash, second.hash, third.hash]


def test_targets_of_other_vendors_are_refused_with_the_remedy() -> None:
    with pytest.raises(ProfilerError, match="gfx942.*--target h200"):
        CompilePool(
            replace(TARGET, device=named_target("mi300x")), processes=1, cache_dir=Path("unused")
        )


def test_a_problem_that_cannot_make_its_inputs_is_the_users_to_mend(cache: Path) -> None:
    broken = Problem(
        "broken",
        "broken.py",
        PROBLEM.source.replace("return [torch.rand(SIDE, SIDE)]", "raise KeyError('no data')"),
    )
    with pytest.raises(ProblemError, match="no data"):
        compile_kernels(
            [Kernel(CANDIDATE)],
            replace(TARGET, problem=broken),
            processes=1,
            cache_dir=cache,
            timeout_s=60,
        )


def test_bf16_contracts_and_tensor_cores_are_compiled_as_they_run(cache: Path) -> None:
    source = """
import torch
import triton
import triton.language as tl

@triton.jit
def product(left, right, result, SIDE: tl.constexpr, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, SIDE, 64):
        depth = start + tl.arange(0, 64)
        first = tl.load(left + rows[:, None] * SIDE + depth[None, :])
        second = tl.load(right + depth[:, None] * SIDE + columns[None, :])
        total = tl.dot(first, second, total)
    tl.store(result + rows[:, None] * SIDE + columns[None, :], total)

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
    def forward(self, x):
        result = torch.empty_like(x)
        product[(4, 4)](x, self.linear.weight, result, 256, 64, num_warps=4)
        return result
"""
    (report,) = compile_kernels(
        [Kernel(source)],
        replace(TARGET, contract=Contract(Precision.BF16)),
        processes=1,
        cache_dir=cache,
        timeout_s=120,
    )
    assert report.status is CompileStatus.OK, report.log
    metrics = report.launches[0].metrics
    assert metrics["static__argument_bytes"] == 3 * 256 * 256 * 2
    assert (
        metrics["static__program_flops"] == 2 * 64 * 64 * 256
        and metrics["static__program_load_bytes"] == 2 * 64 * 256 * 2
    )
    # Four warps share 64x64x16 instructions: 64*64*64*2 FLOPs a step, a quarter of it a warp; the
    # loop may be peeled or unrolled.
    assert (
        metrics.get("static__tensor_flops", 0) + metrics.get("static__loop_tensor_flops", 0)
        >= 64 * 64 * 64 * 2 / 4
    )
    assert metrics["static__shared_bytes_per_block"] >= 2 * 64 * 64 * 2


def test_the_cache_directory_is_tritons_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".triton" / "cache"
    assert "TRITON_CACHE_DIR" not in os.environ


_PARENT = """
import sys
from pathlib import Path
from kmem.devices import named_target
from kmem.profile.compile.pool import compile_kernels
from kmem.problem.traced import untraced_problem
from kmem.records import Contract, Kernel, Problem
place = Path(sys.argv[1])
source = f'''
import os, pathlib, time
(pathlib.Path({str(place)!r}) / "pid").write_text(str(os.getpid()))
os.rename({str(place / 'pid')!r}, {str(place / 'ready')!r})
time.sleep(100)
'''
problem = Problem("p", "p.py", (place / "problem.py").read_text())
target = untraced_problem(problem, Contract(), named_target("h200"))
compile_kernels([Kernel(source)], target, processes=1, timeout_s=100.0, cache_dir=place)
"""


def test_compilers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM.source)
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(tmp_path)])
    deadline = time.monotonic() + 90
    while not (tmp_path / "ready").exists():
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    worker = int((tmp_path / "ready").read_text())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while is_running(worker):
        assert time.monotonic() < deadline, "the compile process outlived its parent"
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Not gone, and no zombie that only waits for init to collect it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.usefixtures("cold_processes")
def test_closing_beside_a_compile_that_was_interrupted_ends_its_processes_and_threads_at_once(
    cache: Path,
) -> None:
    def interrupt(report: CompileReport) -> None:
        raise KeyboardInterrupt

    hang = "import time\ntime.sleep(100)\n" + CANDIDATE
    pool = CompilePool(TARGET, processes=2, cache_dir=cache)
    with pytest.raises(KeyboardInterrupt):
        pool.compile(
            [Kernel("def broken(:"), *(Kernel(hang + f"# {number}") for number in range(4))],
            timeout_s=90.0,
            on_done=interrupt,
        )
    waiting = [thread for thread in threading.enumerate() if thread.name.startswith("kmem-compile")]
    started = time.monotonic()
    pool.close()
    assert len(waiting) == 2 and not any(thread.is_alive() for thread in waiting)
    assert time.monotonic() - started < 30


def test_processes_serve_several_problems_and_closing_them_leaves_nobody_waiting(
    reports: list[CompileReport], cache: Path
) -> None:
    wider = Problem("wider", "wider.py", PROBLEM.source.replace("SIDE = 256", "SIDE = 512"))
    candidate = CANDIDATE.replace("Linear(256, 256)", "Linear(512, 512)")
    with CompileProcesses(1, cache, niceness=1) as processes, ThreadPoolExecutor(1) as waiting:
        pools = [
            CompilePool(replace(TARGET, problem=problem), processes=processes)
            for problem in (PROBLEM, wider, PROBLEM)
        ]
        sources = (CANDIDATE, candidate, CANDIDATE)
        compiled = [
            pool.compile([Kernel(source)], timeout_s=60)[0]
            for pool, source in zip(pools, sources, strict=True)
        ]
        first, other = compiled[:2]
        again = compiled[2]
        assert first.ptx_hash == again.ptx_hash == reports[0].ptx_hash
        assert [len(report.launches) for report in (first, other, again)] == [2, 2, 2]
        assert other.launches[1].grid == (256, 1, 1)
        with CompilePool(TARGET, processes=processes, read_binaries=False) as unread:
            (quick,) = unread.compile([Kernel(CANDIDATE)], timeout_s=60)
        assert quick.ptx_hash == first.ptx_hash, (
            "two modules are the same whether their binaries are read or not"
        )
        assert quick.launches[1].grid == first.launches[1].grid
        binary = {
            "static__registers_per_thread",
            "static__occupancy_pct",
            "static__waves",
            "static__special",
        }
        assert (
            binary <= first.launches[1].metrics.keys()
            and not binary & quick.launches[1].metrics.keys()
        )
        hang = CANDIDATE.replace('print("this must not break the channel")', "while True: pass")
        hanging = waiting.submit(pools[0].compile, [Kernel(hang), Kernel(CANDIDATE)], timeout_s=60)
        processes.close()
        assert isinstance(hanging.exception(timeout=30), CancelledError)


def test_kinds_of_products_are_read_from_the_ir() -> None:
    ttir = """
    %a = tt.dot %x, %y, %z, inputPrecision = tf32 : tensor<16x32xf32> * tensor<32x16xf32> -> t
    %b = tt.dot %x, %y, %a, inputPrecision = tf32 : tensor<16x32xf32> * tensor<32x16xf32> -> t
    %c = tt.dot %x, %y, %z : tensor<16x32xbf16> * tensor<32x16xbf16> -> tensor<16x16xf32>
    """
    assert list_products(ttir) == ("f32 tf32", "bf16 ieee")
