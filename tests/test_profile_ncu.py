"""Nsight Compute: the command, and reading what it really wrote on an H200.

The reports are in tests/recordings, of 2026-11-21.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kmem.counters import BY_NAME, COUNTERS, NCU_COUNTERS, read_quantities
from kmem.devices import named_target
from kmem.engines.local import LocalExecutor
from kmem.errors import DeviceMemoryError, ProfilerError
from kmem.host.confinement import landlock_version
from kmem.interfaces import Executor, Job, JobResult
from kmem.problem.traced import untraced_problem
from kmem.profile.ncu import PERMISSION_ERROR, NcuProfiler, ncu_command
from kmem.profile.ncu_csv import parse_csv, read_report
from kmem.records import Contract, Kernel, Problem
from kmem.vocabulary import SIGNATURE_METRICS

RECORDINGS = Path(__file__).parent / "recordings"
RAW = sorted(path for path in RECORDINGS.glob("ncu_*.csv") if "details" not in path.name)


@pytest.mark.parametrize("path", RAW, ids=lambda path: path.stem)
def test_every_recorded_report_is_read(path: Path) -> None:
    launches = read_report(path)
    assert launches
    for launch in launches:
        assert launch.duration_ms is not None and launch.duration_ms > 0
        assert launch.grid is not None and launch.block is not None
        assert (
            launch.metrics["launch__grid_size"] == launch.grid[0] * launch.grid[1] * launch.grid[2]
        )
        assert set(launch.metrics) <= set(BY_NAME)


def test_a_raw_report_keeps_counters_in_base_units() -> None:
    (launch,) = read_report(RECORDINGS / "ncu_softmax.csv")
    assert launch.duration_ms == 1.525408
    assert launch.metrics["dram__bytes_read.sum"] == 4_831_930_880
    assert launch.metrics["lts__t_sector_hit_rate.pct"] == 25.97
    assert launch.block == (1024, 1, 1)


def test_all_launches_of_a_forward_are_there() -> None:
    assert len(read_report(RECORDINGS / "ncu_tiny_launches.csv")) == 24
    assert len(read_report(RECORDINGS / "ncu_rmsnorm_eager.csv")) == 5


def test_the_details_page_gives_what_it_has_under_the_counters_names() -> None:
    (launch,) = read_report(RECORDINGS / "ncu_details_softmax.csv")
    assert launch.duration_ms == 1.530784
    assert launch.metrics["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"] == 87.19
    assert launch.metrics["launch__registers_per_thread"] == 32
    assert "dram__bytes_read.sum" not in launch.metrics


def test_units_are_converted_by_the_units_row() -> None:
    text = (
        '"ID","Kernel Name","Block Size","Grid '
        'Size","dram__bytes_read.sum","gpu__time_duration.sum"\n'
        '"","","","","Gbyte","usecond"\n"0","k","(128, 1, 1)","(2, 3, 4)","1.5","2,000"\n'
    )
    (launch,) = parse_csv(text.splitlines())
    assert launch.metrics == {"dram__bytes_read.sum": 1.5e9, "gpu__time_duration.sum": 2e6}
    assert (launch.duration_ms, launch.grid) == (2.0, (2, 3, 4))


def test_a_counter_that_is_not_there_is_absent_and_never_zero() -> None:
    text = (
        '"ID","Kernel Name","Block Size","Grid '
        'Size","dram__bytes_read.sum","lts__t_sector_hit_rate.pct","gpu__time_duration.sum"\n'
        '"","","","","byte","%","ns"\n"0","k","(1, 1, 1)","(1, 1, 1)","n/a","no data",""\n'
        '"1","cut off","(1, 1'
    )
    (first, cut) = parse_csv([*text.splitlines()[:3], '"1","cut off","(1, 1, 1)"'])
    assert first.metrics == {} and first.duration_ms is None
    assert cut.metrics == {} and cut.grid is None


def test_lines_of_the_program_around_the_table_are_skipped() -> None:
    lines = (RECORDINGS / "ncu_softmax.csv").read_text().splitlines()
    noisy = [
        "training starts",
        '"quoted chatter"',
        *lines,
        "==PROF== Disconnected",
        '"a","row","of","four"',
    ]
    assert parse_csv(noisy) == read_report(RECORDINGS / "ncu_softmax.csv")


@pytest.mark.parametrize(
    "text", ["", "==ERROR== something\nno table\n", '"a","b"\n"1","2"\n', '"ID","Kernel Name"\n']
)
def test_a_file_that_is_no_report_says_how_to_write_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.csv"
    file.write_text(text)
    with pytest.raises(ProfilerError, match=r"report\.csv holds no"):
        read_report(file)


def test_a_missing_file_and_a_binary_one_without_ncu_name_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProfilerError, match="No report at .*--page raw"):
        read_report(tmp_path / "none.csv")
    monkeypatch.setenv("PATH", str(tmp_path))
    binary = tmp_path / "report.ncu-rep"
    binary.write_bytes(b"NVR\0")
    with pytest.raises(ProfilerError, match="ncu is not on PATH.*--import"):
        read_report(binary)


def test_a_hundred_megabytes_of_log_before_the_table_do_not_hang() -> None:
    table = (RECORDINGS / "ncu_softmax.csv").read_text().splitlines()
    start = time.monotonic()
    noise = ("x" * 1000 for _ in range(100_000))
    assert len(parse_csv(line for part in (noise, table) for line in part)) == 1
    assert time.monotonic() - start < 60


def test_the_command_profiles_between_start_and_stop_at_the_clocks_as_they_are() -> None:
    command = ncu_command("/usr/bin/ncu", ("python", "harness.py"), launch_limit=7)
    assert command[0] == "/usr/bin/ncu" and command[-2:] == ("python", "harness.py")
    text = " ".join(command)
    assert (
        "--profile-from-start off --clock-control none --cache-control all --replay-mode kernel"
        in text
    )
    assert (
        "--csv --page raw --print-units base" in text
        and "--launch-count 7" in text
        and "--log-file out/ncu.csv" in text
    )
    assert command[command.index("--metrics") + 1].split(",") == list(NCU_COUNTERS)


def test_every_counter_serves_a_dimension_of_the_signature() -> None:
    ingredients = {
        "duration_ns",
        "dram_read_bytes",
        "dram_write_bytes",
        "load_bytes_per_sector",
        "local_store_instructions",
        "threads",
        "blocks",
        "blocks_by_registers",
        "blocks_by_shared",
        "warp_cycles",
        "stall_long_scoreboard",
        "stall_lg_throttle",
        "stall_barrier",
        "threads_per_instruction",
        "fp32_additions",
        "fp32_products",
        "fp32_multiply_adds",
        "dram_bytes",
        "least_dram_bytes",
        "fp32_flops",
        "masked_out_pct",  # no dimensions, but what rules go by
        "bytes_in_flight_pct",
    }
    assert {counter.quantity for counter in COUNTERS} <= set(SIGNATURE_METRICS) | ingredients
    assert len({counter.name for counter in COUNTERS}) == len(COUNTERS)


def test_the_first_of_several_counters_for_one_quantity_counts() -> None:
    metrics = {"cupti__registers_per_thread": 40.0, "launch__registers_per_thread": 32.0}
    assert read_quantities(metrics) == {"registers_per_thread": 32.0}


class RecordedExecutor(Executor):
    """Answers every job with what a machine once gave."""

    name = "recorded"

    def __init__(self, result: JobResult) -> None:
        self.result, self.jobs = result, []

    def run(self, job: Job, *, timeout_s: float) -> JobResult:
        self.jobs.append(job)
        return self.result


def _profile(result: JobResult):  # noqa: ANN202
    executor = RecordedExecutor(result)
    traced = untraced_problem(Problem("p", "p.py", "SOURCE"), Contract(), named_target("h200"))
    return NcuProfiler().profile(Kernel("CANDIDATE"), traced, executor), executor


def test_the_profiler_turns_a_job_into_a_profile() -> None:
    profile, executor = _profile(
        JobResult(0, "", "", {"ncu.csv": (RECORDINGS / "ncu_rmsnorm_eager.csv").read_bytes()}, 1.0)
    )
    assert (profile.profiler, profile.device, profile.estimated, len(profile.launches)) == (
        "ncu",
        "h200",
        False,
        5,
    )
    (job,) = executor.jobs
    assert (
        job.argv[0] == "ncu"
        and job.files["candidate.py"] == "CANDIDATE"
        and "SOURCE" in job.files["job.json"]
    )


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (
            JobResult(1, f"==ERROR== {PERMISSION_ERROR}", "", {}, 1.0),
            ProfilerError,
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        (
            JobResult(0, "", "", {"ncu.csv": f"==ERROR== {PERMISSION_ERROR} - see".encode()}, 1.0),
            ProfilerError,
            "--profiler cupti",
        ),
        (JobResult(None, "", "", {}, 300.0), ProfilerError, "took longer than 300 s"),
        (
            JobResult(1, "", "torch.OutOfMemoryError: CUDA out of memory. Tried", {}, 1.0),
            DeviceMemoryError,
            "smaller",
        ),
        (
            JobResult(9, "", "Traceback\nValueError: bad", {}, 1.0),
            ProfilerError,
            "exit code 9: ValueError: bad",
        ),
        (JobResult(0, "", "", {}, 1.0), ProfilerError, "holds no CSV"),
    ],
)
def test_each_way_to_fail_names_its_remedy(
    result: JobResult, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _profile(result)


def test_a_run_asks_for_counters_that_it_may_not_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmem.profile.ncu._absent_reason", lambda: None)
    profiler = NcuProfiler()
    assert profiler.unavailable_reason() is None
    executor = RecordedExecutor(JobResult(1, f"==ERROR== {PERMISSION_ERROR}", "", {}, 1.0))
    traced = untraced_problem(Problem("p", "p.py", "SOURCE"), Contract(), named_target("h200"))
    with pytest.raises(ProfilerError):
        profiler.profile(Kernel("CANDIDATE"), traced, executor)
    assert "--profiler cupti" in profiler.unavailable_reason()


def test_the_harness_itself_fails_with_one_clear_line_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    # the harness is confined to its job's directory: coverage could write nothing at its end
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)

    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    from kmem.profile.job import check_result, harness_job

    problem = Problem(
        "p",
        "p.py",
        (
            "import torch\nclass Model(torch.nn.Module): pass\n"
            "def get_inputs(): return [torch.rand(2)]\n"
        ),
    )
    result = LocalExecutor().run(
        harness_job(
            ("python", "harness.py", "cupti"),
            Kernel(""),
            untraced_problem(problem, Contract(), named_target("h200")),
        ),
        timeout_s=120,
    )
    with pytest.raises(
        ProfilerError, match="torch.profiler ended with exit code 1: .*(CUDA|NVIDIA|cuda)"
    ):
        check_result(result, "torch.profiler", 120)


_INSIDE = """
import os, sys
from pathlib import Path
from kmem.profile import harness

def outcome(attempt):
    try:
        attempt()
    except OSError as ex:
        return type(ex).__name__
    return "done"

place, home = Path(sys.argv[1]), Path(os.environ["HOME"])
harness.confine(place)
import torch, triton
from kmem.profile import watched  # kmem may be read until the candidate runs
harness.hide_rest(place, {"problem": {"source": "", "path": str(home / "problem.py")}})
print(
    outcome(lambda: (place / "out" / "trace.json").write_text("{}")),
    outcome(lambda: Path(os.environ["TRITON_CACHE_DIR"], "kernel").write_text("")),
    outcome(lambda: (home / "secret").read_text()),
    outcome(lambda: Path(harness.__file__).read_text()),
    outcome(lambda: os.kill(os.getppid(), 0)),
)
"""


@pytest.mark.slow
@pytest.mark.skipif(not landlock_version(), reason="no Landlock here")
def test_the_harness_leaves_its_candidate_the_files_of_the_job_alone(tmp_path: Path) -> None:
    job, home = tmp_path / "job", tmp_path / "home"
    (job / "out").mkdir(parents=True)
    home.mkdir()
    (home / "secret").write_text("a key")
    ran = subprocess.run(
        [sys.executable, "-c", _INSIDE, str(job)],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["done", "done", *["PermissionError"] * 3], ran.stderr
