"""A worker that hangs, dies, exits, shouts or lies is a status, and the next candidate runs.

The source check is off here.
"""

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from corpus import problems
from corpus.dishonest import scale_relu
from corpus.honest import LIBRARY

from kmem.devices import named_target
from kmem.errors import ExecutorError
from kmem.host.confinement import Limits
from kmem.measure import examiner
from kmem.measure.judge import Judge
from kmem.measure.pool.arguments import SharedArguments
from kmem.measure.pool.process import WorkerFailure, WorkerLost, WorkerProcess
from kmem.measure.pool.shared_directory import SharedDirectory
from kmem.measure.pool.template import KEPT_VARIABLES, WORKER_FILES
from kmem.measure.settings import JudgeSettings
from kmem.measure.timing.baseline import COMPILE_TIMEOUT_S
from kmem.measure.worker.commands import Command, Detach, Load, Run
from kmem.measure.worker.free_memory import poison_free_memory
from kmem.measure.worker.tensors import Placement
from kmem.problem.traced import TracedProblem
from kmem.records import Contract, Kernel, Measurement, Problem, Status, Workload

RIGHT = "return torch.relu(x * self.scale)"
IMPORTS = "\nimport os, sys, time\n"

pytestmark = pytest.mark.usefixtures("cold_processes")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    place = tmp_path_factory.mktemp("faults")
    problem = Problem("corpus", "<corpus>", problems.SCALE_RELU)
    workloads = {"full": Workload("full")}
    traced = TracedProblem(problem, Contract(), named_target("h200"), workloads, {}, None)
    settings = JudgeSettings(
        seed=3,
        gpu=False,
        work_dir=place,
        cache_dir=place / "cache",
        load_timeout_s=4.0,
        run_timeout_s=4.0,
    )
    with Judge(traced, settings, estimate_ms=lambda kernel: 1.0) as made:
        yield made


FAULTS = [
    (
        "hangs at import",
        scale_relu(RIGHT, before=IMPORTS + "time.sleep(3600)\n"),
        Status.TIMED_OUT,
        "no answer within 4 s",
    ),
    (
        "hangs in forward",
        scale_relu("while True:\n    pass"),
        Status.TIMED_OUT,
        "no answer within 4 s",
    ),
    (
        "sys.exit in forward",
        scale_relu("sys.exit(0)", before=IMPORTS),
        Status.CRASHED,
        "SystemExit",
    ),
    (
        "sys.exit at import",
        scale_relu(RIGHT, before=IMPORTS + "sys.exit(0)\n"),
        Status.CRASHED,
        "SystemExit",
    ),
    (
        "os._exit in forward",
        scale_relu("os._exit(0)", before=IMPORTS),
        Status.CRASHED,
        "exited with code 0",
    ),
    (
        "raises what cannot be shown",
        scale_relu(
            "raise Odd",
            before=IMPORTS
            + "class Odd(Exception):\n    def __str__(self):\n        raise KeyError(1)\n",
        ),
        Status.CRASHED,
        "Odd: (its message cannot be shown: KeyError)",
    ),
    (
        "kills itself",
        scale_relu("os.kill(os.getpid(), 9)", before=IMPORTS),
        Status.CRASHED,
        "was killed by SIGKILL",
    ),
    (
        "leaves a thread",
        scale_relu(
            f"threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n{RIGHT}",
            before=IMPORTS + "import threading\n",
        ),
        Status.REFUSED_SOURCE,
        "a thread that outlives the call",
    ),
    (
        "leaves a process",
        scale_relu(f"if os.fork() == 0:\n    time.sleep(60)\n{RIGHT}", before=IMPORTS),
        Status.REFUSED_SOURCE,
        "a process that outlives the call",
    ),
    (
        "kills what it was forked from and the judge",
        scale_relu("os.kill(os.getppid(), 9)", before=IMPORTS),
        Status.CRASHED,
        "PermissionError",
    ),
    (
        "replaces torch.allclose out of sight",
        scale_relu(f"[torch][0].allclose = lambda *a, **k: True\n{RIGHT}"),
        Status.REFUSED_SOURCE,
        "while it ran it replaced or left behind torch.allclose",
    ),
    (
        "slows everybody else down",
        scale_relu(f"torch.set_num_threads(torch.get_num_threads() + 1)\n{RIGHT}"),
        Status.REFUSED_SOURCE,
        "while it ran it replaced or left behind the number of threads",
    ),
    (
        "forges an answer on every descriptor",
        scale_relu(
            'text = b\'{"outputs": [], "status": "passed"}\'\n'
            "for fd in range(3, 64):\n"
            "    try:\n        os.write(fd, len(text).to_bytes(4, 'big') + text)\n"
            "    except OSError:\n        pass\n"
            "return torch.zeros_like(x)",
            before=IMPORTS,
        ),
        Status.CRASHED,
        "forged",
    ),
    (
        "writes nonsense on every descriptor",
        scale_relu(
            (
                "for fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 64)\n"
                "    except OSError:\n        pass\nreturn x * 0"
            ),
            before=IMPORTS,
        ),
        Status.CRASHED,
        "channel carried a frame of",
    ),
]


_JUDGE = """
import sys, time
from pathlib import Path
from kmem.measure.pool.shared_directory import SharedDirectory
made = SharedDirectory(Path(sys.argv[1]), Path(sys.argv[2]))
(made.path / "inputs").write_bytes(b"x" * 4096)
print(made.path, flush=True)
time.sleep(60)
"""


def test_a_worker_is_made_of_files_that_need_no_kmem() -> None:
    siblings = {path.stem for path in WORKER_FILES}
    allowed = siblings | {"numpy", "torch", "triton"} | sys.stdlib_module_names
    for path in WORKER_FILES:
        imported = {name.split(".")[0] for name in imported_modules(path)}
        assert imported <= allowed, f"{path.name} imports {imported - allowed}"
    assert "lease" in siblings and not siblings & sys.stdlib_module_names


def test_the_rooms_of_the_judge_import_downwards() -> None:
    measure = WORKER_FILES[0].parents[1]
    floors = ("worker", "pool", "oracle", "timing", "examine")
    for path in measure.rglob("*.py"):
        here = path.relative_to(measure).parts[0]
        lower = floors[: floors.index(here) + 1] if here in floors else floors
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[:2] == ["kmem", "measure"] and here in floors:
                assert parts[2] in lower, f"{path} imports {name}"


def imported_modules(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_memory_of_a_judge_that_was_killed_is_freed_by_the_next(tmp_path: Path) -> None:
    root, fallback = tmp_path / "shm", tmp_path / "work"
    root.mkdir()
    fallback.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", _JUDGE, str(fallback), str(root)], stdout=subprocess.PIPE, text=True
    )
    left = Path(process.stdout.readline().strip())
    alive = SharedDirectory(fallback, root)
    assert (left / "inputs").exists()  # its judge lives
    process.kill()
    process.communicate()
    SharedDirectory(fallback, root).close()
    assert not left.exists()
    assert alive.path.exists()
    alive.close()
    assert os.listdir(root) == []


def test_a_memory_file_system_without_room_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmem.measure.pool.shared_directory._ENOUGH_BYTES", 2**62)
    (tmp_path / "shm").mkdir()
    made = SharedDirectory(tmp_path, tmp_path / "shm")
    assert made.path.parent == tmp_path
    made.close()


def test_a_full_disk_is_one_line_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(
        ExecutorError, match="Cannot share 4096 bytes .*: No space left on device; free space there"
    ):
        SharedArguments(
            "inputs", [torch.zeros(1024)], Placement(torch.device("cpu"), tmp_path, ipc=False)
        )
    assert os.listdir(tmp_path) == []


def screen(judge: Judge, *sources: str) -> list[Measurement]:
    return judge.screen(
        [Kernel(source) for source in sources], lambda index, measurement: None, deadline_s=120
    )


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_a_fault_is_a_status_and_the_next_candidate_runs(
    judge: Judge, source: str, status: Status, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examiner, "check_source", lambda source, problem_source: [])
    first, second = screen(judge, source, LIBRARY)
    assert first.status is status, first.log
    assert reason in first.log
    assert second.status is Status.PASSED, second.log


def test_a_megabyte_of_log_is_kept_out_of_the_verdict(judge: Judge) -> None:
    loud = scale_relu(
        f"for _ in range(1000):\n    print('x' * 1024)\nprint('passed', flush=True)\n{RIGHT}"
    )
    (measurement,) = screen(judge, loud)
    assert (measurement.status, measurement.log) == (Status.PASSED, "")


def test_a_baseline_that_is_started_again_is_compiled_before_anything_is_timed_against_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate's time limit is not for compiling the competition.

    If that fails it is no fault of the candidate.
    """
    asked: list[tuple[type, float]] = []
    request = WorkerProcess.request

    def note(worker: WorkerProcess, command: Command, **how: object) -> dict[str, object]:
        asked.append((type(command), how["timeout_s"]))
        return request(worker, command, **how)

    def fail(worker: WorkerProcess, command: Command, **how: object) -> dict[str, object]:
        if isinstance(command, Run):
            raise WorkerLost(Status.CRASHED, "the compiler gave up")
        return request(worker, command, **how)

    resources = judge._resources
    monkeypatch.setattr(WorkerProcess, "request", note)
    worker = resources.baseline_worker("eager")
    assert asked[-1] == (Run, COMPILE_TIMEOUT_S)
    assert resources.baseline_worker("eager") is worker
    resources.workers.discard(worker)
    monkeypatch.setattr(WorkerProcess, "request", fail)
    with pytest.raises(
        ExecutorError, match="Baseline eager ran before and fails now: the compiler gave up"
    ):
        resources.baseline_worker("eager")


def test_each_result_is_told_once_and_in_order_of_index(judge: Judge) -> None:
    told: list[tuple[int, Status]] = []
    kernels = [Kernel(LIBRARY), Kernel("import os\n"), Kernel(LIBRARY + "\n# again\n")]
    found = judge.screen(
        kernels, lambda index, measurement: told.append((index, measurement.status)), deadline_s=60
    )
    assert told == [(0, Status.PASSED), (1, Status.REFUSED_SOURCE), (2, Status.PASSED)]
    assert [measurement.status for measurement in found] == [status for _, status in told]


def test_kernels_after_the_deadline_are_interrupted(judge: Judge) -> None:
    (measurement,) = judge.screen([Kernel(LIBRARY)], lambda index, measurement: None, deadline_s=-1)
    assert measurement.status is Status.INTERRUPTED


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    os.environ["KMEM_TEST_TOKEN"] = "secret"
    place = tmp_path_factory.mktemp("worker")
    made = WorkerProcess(place, "cpu", cache_dir=place / "cache").wait_ready()
    del os.environ["KMEM_TEST_TOKEN"]
    yield made
    made.kill()


def load(worker: WorkerProcess, source: str) -> None:
    path = worker.directory / f"probe_{time.monotonic_ns()}.py"
    worker.request(
        Load("probe", str(path), source, "ModelNew", [], [], training=True), timeout_s=20
    )


@pytest.mark.slow
def test_what_is_loaded_again_is_not_held_twice(worker: WorkerProcess) -> None:
    """It may have had no room the first time."""
    load(worker, "import torch\nclass ModelNew(torch.nn.Module): pass\n")
    kept = "[each for each in __import__('gc').get_objects() if type(each).__name__ == 'ModelNew']"
    assert probe(worker, kept) == "[]"


def probe(worker: WorkerProcess, expression: str) -> str:
    """What an expression is inside a worker, as a candidate would see it."""
    with pytest.raises(WorkerFailure) as caught:
        load(worker, f"import os, resource, socket, sys\nraise ValueError(repr({expression}))\n")
    return caught.value.message


def test_free_memory_is_poisoned_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(value: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "empty_like", no_room)
    poison_free_memory([((4,), torch.float32), ((2, 3), torch.int64)], torch.device("cpu"), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("scratch", [0, 2**9, 2**15, 2**19, 2**20, 3 * 2**20])
def test_a_small_result_of_an_earlier_call_is_not_there_for_the_next(scratch: int) -> None:
    """The mean of a batch is nearly that of another: without launches it would pass for it."""

    def call() -> torch.Tensor:
        work = torch.empty(scratch, dtype=torch.uint8, device="cuda")
        result = torch.empty((), dtype=torch.float16, device="cuda")
        del work
        return result

    torch.cuda.empty_cache()  # a result lies behind its scratch memory, not in an older gap
    call().fill_(10.5)
    poison_free_memory([((), torch.float16)], torch.device("cuda"), torch.cuda.memory_reserved())
    assert call().isnan()


def test_a_worker_sees_no_secrets_and_no_home(worker: WorkerProcess) -> None:
    assert probe(worker, "'KMEM_TEST_TOKEN' in os.environ") == "False"
    assert probe(worker, "os.environ['HOME']") == repr(str(worker.directory))
    own = {"HOME", "TMPDIR", "TRITON_CACHE_DIR", "TRITON_INTERPRET"}
    own |= {"TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"}
    torch_sets = {"TORCHINDUCTOR_CACHE_DIR", "KINETO_LOG_LEVEL", "LC_CTYPE"}
    seen = set(ast.literal_eval(probe(worker, "sorted(os.environ)")))
    assert seen <= own | torch_sets | set(KEPT_VARIABLES)


def test_a_worker_cannot_import_kmem(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailure) as caught:
        load(worker, "import kmem\n")
    assert caught.value.bases[:2] == ("ModuleNotFoundError", "ImportError")


def test_a_worker_leads_its_own_process_group_and_has_limits(worker: WorkerProcess) -> None:
    assert os.getpgid(worker.pid) == worker.pid
    assert probe(worker, "resource.getrlimit(resource.RLIMIT_CORE)[0]") == "0"
    assert probe(worker, "resource.getrlimit(resource.RLIMIT_FSIZE)[0]") == str(2**30)
    # memory that runs out costs the worker
    assert probe(worker, "open('/proc/self/oom_score_adj').read()") == repr("1000\n")
    assert int(probe(worker, "resource.getrlimit(resource.RLIMIT_AS)[0]")) == Limits().address_bytes


@pytest.mark.parametrize(("memory", "limit"), [(4, 16), (32, 24), (512, 64)])
def test_a_worker_may_take_three_quarters_of_the_memory(
    memory: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 2**30, "SC_PHYS_PAGES": memory}.__getitem__)
    assert Limits().address_bytes == limit * 2**30


@pytest.mark.slow
def test_a_killed_worker_is_lost_with_its_signal(tmp_path: Path) -> None:
    victim = WorkerProcess(tmp_path, "cpu", cache_dir=tmp_path / "cache").wait_ready()
    os.kill(victim.pid, signal.SIGTERM)
    with pytest.raises(WorkerLost, match="was killed by SIGTERM"):
        victim.request(Detach("nothing"), timeout_s=10)
    assert not victim.alive


def test_nobody_waits_for_a_baseline_longer_than_there_is_time(judge: Judge) -> None:
    resources = judge._resources
    loading = threading.Event()
    done = threading.Event()

    def load() -> None:
        with resources._loading:
            loading.set()
            done.wait(30)

    thread = threading.Thread(target=load)
    thread.start()
    loading.wait(30)
    with pytest.raises(WorkerLost, match="baseline eager was not loaded in time") as caught:
        resources.baseline_worker("eager", timeout_s=0.01)
    assert caught.value.status is Status.TIMED_OUT
    done.set()
    thread.join()
