"""The main job end to end on the CPU: problem in, verified module out.

Also recall, kill and resume, and one clear line for every bad input.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import warm
from click.testing import CliRunner

from kmem.cli import cli
from kmem.devices import named_target
from kmem.errors import ExecutorError
from kmem.memory.store import Memory
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.records import Device, Run
from kmem.run.report.first_screen import NOT_REMEMBERED
from kmem.run.setup.ceilings import measured_ceilings

PROBLEM = """
import torch
ROWS = 512
COLS = 4096
class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((COLS,), scale))
    def forward(self, x):
        return torch.nn.functional.silu(x) * self.scale
def get_inputs():
    return [torch.randn(ROWS, COLS)]
def get_init_inputs():
    return [1.5]
"""


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return write_problem(tmp_path)


def write_problem(home: Path) -> Path:
    file = home / "scaled_silu.py"
    file.write_text(PROBLEM)
    return file


@pytest.fixture(scope="module")
def registry() -> Registry:
    return collect(build_plugin_manager())


def kmem(*args: str, home: Path, database: str = "kmem.db") -> subprocess.CompletedProcess[str]:
    return warm.run(*args, timeout=240, env=environment(home, database), cwd=home)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "kmem", *args]


def environment(home: Path, database: str = "kmem.db") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {
        **kept,
        "KMEM_DB": str(home / database),
        "XDG_DATA_HOME": str(home / "data"),
        "KMEM_EMBEDDING_MODEL": "none",
    }


@dataclass(frozen=True)
class Resumed:
    """A run of three candidates that was killed when it had measured one, and resumed."""

    home: Path
    problem: Path
    result: dict[str, Any]
    before: list[tuple[Any, ...]]  # the rows of attempts when it was killed

    @property
    def out(self) -> Path:
        return self.home / "run"


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    home = tmp_path_factory.mktemp("resumed")
    problem = write_problem(home)
    process = warm.WarmPopen(
        command(
            "optimize",
            str(problem),
            "--target",
            "h200",
            "--rounds",
            "0",
            "--out",
            str(home / "run"),
        ),
        env=environment(home),
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    before = wait_for_attempts(home / "kmem.db", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (listed,) = json.loads(kmem("runs", "list", "--json", home=home).stdout)["runs"]
    done = kmem("runs", "resume", listed["run"], "--json", home=home)
    assert done.returncode == 0, done.stderr
    return Resumed(home, problem, json.loads(done.stdout), before)


@pytest.mark.slow
def test_a_problem_goes_in_and_a_verified_module_comes_out(resumed: Resumed) -> None:
    result = resumed.result
    assert result["status"] == "passed"
    assert result["estimated"] is True
    assert result["speedup"] > 1.005
    assert 0 < result["bound_ms"] <= result["latency_ms"]
    for name in ("best_kernel.py", "report.md", "convergence.png", "result.json"):
        assert (resumed.out / name).stat().st_size > 0
    about = " ".join((resumed.out / "best_kernel.py").read_text().split())
    assert re.search(r"cost models expect \S+ ms of their kernels", about)
    assert re.search(r"Run \S+: \S+ ms \(estimated\)", about)


@pytest.mark.slow
def test_a_run_of_estimates_says_that_memory_learns_nothing_from_it(resumed: Resumed) -> None:
    assert NOT_REMEMBERED in (resumed.out / "report.md").read_text()
    with closing(sqlite3.connect(resumed.home / "kmem.db")) as database:
        assert database.execute("select count(*) from attempts").fetchone()[0] >= 3
        assert database.execute("select count(*) from outcomes").fetchone() == (0,)
    report = (resumed.out / "report.md").read_text()
    assert "estimate" in report and "scaled_silu" in report
    with sqlite3.connect(resumed.home / "kmem.db") as db:
        assert db.execute("select count(*) from outcomes").fetchone() == (0,), (
            "an estimate must never enter the ledger"
        )


@pytest.mark.slow
def test_a_killed_run_resumes_without_repeating_what_was_measured(resumed: Resumed) -> None:
    with sqlite3.connect(resumed.home / "kmem.db") as db:
        after = db.execute(
            "select * from attempts where run = ? order by id", [resumed.result["run"]]
        ).fetchall()
        moves = [
            move
            for (move,) in db.execute(
                "select move from attempts where run = ?", [resumed.result["run"]]
            )
        ]
    assert after[: len(resumed.before)] == resumed.before, "finished measurements stay as they were"
    assert moves.count("seed") == 3, (
        "the round that was cut short ends as it would have, not with candidates it had passed over"
    )


@pytest.mark.slow
def test_a_winner_is_recalled_from_memory_by_a_later_run(resumed: Resumed, tmp_path: Path) -> None:
    with (
        sqlite3.connect(resumed.home / "kmem.db") as db,
        sqlite3.connect(resumed.home / "later.db") as copy,
    ):
        db.backup(copy)  # a memory of its own: the other tests count what is in theirs
    teach(resumed.home / "later.db", resumed.result["run"])
    words = (
        "optimize",
        str(resumed.problem),
        "--target",
        "h200",
        "--rounds",
        "0",
        "--json",
        "--out",
        str(tmp_path / "later"),
    )
    later = kmem(*words, home=resumed.home, database="later.db")
    assert later.returncode == 0, later.stderr
    recalled = json.loads(later.stdout)
    assert recalled["recalled"] is True
    assert "recalled" in recalled["flags"]
    assert recalled["measurements"] * 2 <= resumed.result["measurements"]
    texts = [(out / "best_kernel.py").read_text() for out in (tmp_path / "later", resumed.out)]
    runs = [recalled["run"], resumed.result["run"]]
    said = [re.search(r"\nRun .*?\.json.*?saw\.\n", text, re.DOTALL) for text in texts]
    assert all(run in found[0] for run, found in zip(runs, said, strict=True))
    assert len({text.replace(found[0], "") for text, found in zip(texts, said, strict=True)}) == 1


def teach(database: Path, run_id: str) -> None:
    """Put the run's winner into the ledger, as a GPU would have."""
    from kmem.memory.store import Memory
    from kmem.plugins import build_plugin_manager, collect
    from kmem.problem.graph import graph_sizes
    from kmem.records import Move, Outcome, Status, recipe_component
    from kmem.skills import load_skill, recipe_version
    from kmem.testing import trace_source

    _, graph = trace_source(PROBLEM)
    skills = collect(build_plugin_manager()).skills
    with Memory(database, embed=None) as memory:
        run, result = memory.runs.get(run_id), memory.runs.result(run_id)
        best = result.best
        written_by = {
            recipe_component(choice.recipe): recipe_version(load_skill(skills[choice.recipe]))
            for choice in best.candidate.kernel.choices
        }
        memory.runs.put_kernel(best.candidate.kernel)
        memory.ledger.record(
            Outcome(
                problem="scaled_silu",
                graph_hash=graph.hash,
                structure_hash=graph.structure_hash,
                sizes=graph_sizes(graph),
                operators=("pointwise",),
                workload="full",
                device="NVIDIA H200",
                arch="sm_90",
                contract=run.contract,
                skill=best.candidate.task.skill,
                choices=best.candidate.kernel.choices,
                move=Move.SEED,
                bottleneck=None,
                signature=None,
                source_hash=best.candidate.kernel.hash,
                parent_hash=None,
                status=Status.PASSED,
                latency_ms=0.006,
                latency_ms_p20=0.006,
                latency_ms_p80=0.006,
                parent_ms=None,
                baseline="eager",
                baseline_ms=200.0,
                ratio=2.0,
                ratio_low=1.9,
                ratio_high=2.1,
                bound_ms=1.0,
                flags=(),
                versions=written_by,
                origin="test",
                created_at="2026-01-01",
            )
        )


def wait_for_attempts(path: Path, process: subprocess.Popen) -> list[tuple]:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists():
            try:
                with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
                    if rows := db.execute("select * from attempts order by id").fetchall():
                        return rows
            except sqlite3.OperationalError:
                pass  # the tables are being made at this moment
        time.sleep(0.05)
    raise AssertionError(f"no attempt was recorded; exit status {process.poll()}")


@pytest.mark.slow
def test_an_interrupt_keeps_the_run_and_says_how_to_go_on(problem: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(
            *("optimize", str(problem), "--target", "h200", "--candidates", "2"),
            *("--out", str(tmp_path / "run")),
        ),
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # as a shell starts a background job of a script, and whatever that starts inherits
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    for line in process.stderr:
        if ": passed" in line:
            break
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "kmem runs resume" in stderr
    best = tmp_path / "run" / "best_kernel.py"
    assert "best " in stderr and "baseline " in stderr and f"{best} (provisional" in stderr
    assert best.read_text().startswith("# PROVISIONAL, NOT VERIFIED")
    assert "Traceback" not in stderr
    (listed,) = json.loads(kmem("runs", "list", "--json", home=tmp_path).stdout)["runs"]
    assert listed["state"] == "interrupted"
    assert listed["best_so_far_ms"] > 0
    (line,) = kmem("runs", home=tmp_path).stdout.splitlines()
    assert "interrupted  scaled_silu" in line and "best so far" in line


def test_an_interrupt_before_the_run_began_is_one_line_and_exit_code_130(
    registry: Registry, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(target: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kmem.run.setup.settings.resolve_target", interrupt)
    result = CliRunner().invoke(cli, ["optimize", str(problem), "--target", "h200"], obj=registry)
    assert (result.exit_code, result.output) == (130, "\nInterrupted\n")


HOPELESS = [
    ("nothing matches", "torch.sort(x, dim=-1)[0]", "no executable skill matches", "eager"),
    (
        "control flow depends on data",
        "x.relu() if x.sum() > 0 else x.sigmoid()",
        "one opaque call",
        "the module as it is",
    ),
]


@pytest.mark.parametrize(
    ("what", "forward", "why", "answer"), HOPELESS, ids=[case[0] for case in HOPELESS]
)
def test_a_module_nothing_can_improve_exits_3_and_says_why(
    what: str,
    forward: str,
    why: str,
    answer: str,
    registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    file = tmp_path / "hopeless.py"
    file.write_text(
        "import torch\nN = 64\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, x):\n        return {forward}\n"
        "def get_inputs():\n    return [torch.rand(N, 8)]\n"
    )
    result = CliRunner().invoke(
        cli,
        ["optimize", str(file), "--target", "h200", "--out", str(tmp_path / "out"), "--json"],
        obj=registry,
    )
    assert result.exit_code == 3, result.stderr
    assert json.loads(result.stdout)["status"] == "baseline_is_best"
    report = (tmp_path / "out" / "report.md").read_text()
    for said in (result.stderr, report):
        assert NOT_REMEMBERED in said
    assert why in report
    assert f"the answer is {answer}" in report
    assert not (tmp_path / "out" / "best_kernel.py").exists()
    written = (tmp_path / "out" / "report.md").stat().st_mtime_ns
    again = CliRunner().invoke(cli, ["runs", "resume", "2"], obj=registry)
    assert again.exit_code == 3
    assert "has finished already; nothing is done again" in again.stderr
    assert (tmp_path / "out" / "report.md").stat().st_mtime_ns == written


BROKEN = [
    ("syntax error", "def broken(:\n", "line 1"),
    ("no Model", "def get_inputs():\n    return []\n", "no Model"),
    ("no get_inputs", "import torch\nclass Model(torch.nn.Module):\n    pass\n", "no get_inputs"),
    ("fails when run", PROBLEM + "\nraise ValueError('at import')\n", "at import"),
    (
        "get_inputs raises",
        PROBLEM.replace("return [torch.randn(ROWS, COLS)]", "raise RuntimeError('no data')"),
        "no data",
    ),
    (
        "get_inputs returns nothing",
        PROBLEM.replace("return [torch.randn(ROWS, COLS)]", "return None"),
        "get_inputs",
    ),
    ("constructor fails", PROBLEM.replace("return [1.5]", "return []"), "scale"),
    (
        "forward fails",
        PROBLEM.replace("torch.randn(ROWS, COLS)", "torch.randn(ROWS, 3)"),
        "forward",
    ),
    (
        "forward exits",
        PROBLEM.replace("return torch.nn", "raise SystemExit(3)\n        return torch.nn"),
        "SystemExit: 3",
    ),
    (
        "forward returns nothing",
        PROBLEM.replace("return torch.nn", "torch.nn"),
        "forward returned None",
    ),
    ("exits when run", PROBLEM + "\nraise SystemExit(0)\n", "SystemExit: 0"),
]


@pytest.mark.parametrize(("what", "source", "expected"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_bad_problem_gets_one_clear_line(
    what: str, source: str, expected: str, tmp_path: Path, registry: Registry
) -> None:
    file = tmp_path / "problem.py"
    file.write_text(source)
    result = CliRunner().invoke(
        cli,
        ["optimize", str(file), "--target", "h200", "--out", str(tmp_path / "out")],
        obj=registry,
    )
    assert result.exit_code == 1
    error = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(error) == 1
    assert expected in error[0]
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
    listed = CliRunner().invoke(cli, ["runs", "list", "--json"], obj=registry).stdout
    assert json.loads(listed) == {"runs": []}


def test_a_run_that_fails_keeps_its_reason(
    registry: Registry, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ExecutorError("The judge's process could not be started; free some memory")

    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setattr("kmem.run.perform.optimize", fail)
    words = ["optimize", str(problem), "--target", "h200", "--out", str(tmp_path / "out")]
    assert "could not be started" in invoke(registry, *words)
    for arguments in (["runs", "show", "2"], ["runs", "list"], ["why", "2"]):
        shown = CliRunner().invoke(cli, arguments, obj=registry).output
        assert "The judge's process could not be started" in shown, arguments


def test_a_resumed_run_has_the_minutes_that_its_sittings_left(
    registry: Registry, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = list[float]()

    def open_evaluator(run: Run, *arguments: object) -> None:
        minutes.append(run.budget.minutes)
        raise ExecutorError("The judge's process could not be started; free some memory")

    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setattr("kmem.run.perform.LiveEvaluator", open_evaluator)
    words = ["--target", "h200", "--minutes", "3", "--out", str(tmp_path / "out")]
    invoke(registry, "optimize", str(problem), *words)
    with Memory() as memory:
        (entry,) = memory.run_entries.all()
        memory.runs.put_seconds_spent(entry.run.id, 60.0)
    invoke(registry, "runs", "resume", entry.run.id)
    assert minutes == [3.0, 2.0]


def test_a_run_leaves_the_directory_of_another_as_it_is(
    registry: Registry, problem: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"id": "r1"}')
    (tmp_path / "out" / "best_kernel.py").write_text("another's")
    words = ["optimize", str(problem), "--target", "h200", "--out", str(tmp_path / "out")]
    assert "holds run r1, which would be overwritten" in invoke(registry, *words)
    assert (tmp_path / "out" / "best_kernel.py").read_text() == "another's"
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_kmem_out_is_a_root_and_not_the_directory_of_a_run(
    registry: Registry, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_OUT", str(tmp_path / "root"))
    places = list[str]()
    monkeypatch.setattr(
        "kmem.cli.actions.optimize.execute_run", lambda run, *_, **__: places.append(run.out_dir)
    )
    for _ in range(2):
        CliRunner().invoke(cli, ["optimize", str(problem), "--target", "h200"], obj=registry)
    assert len(set(places)) == 2
    assert {Path(place).parent for place in places} == {tmp_path / "root"}


def invoke(registry: Registry, *args: str) -> str:
    result = CliRunner().invoke(cli, list(args), obj=registry)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_no_such_file_is_named(registry: Registry, tmp_path: Path) -> None:
    assert "nowhere.py" in invoke(
        registry, "optimize", str(tmp_path / "nowhere.py"), "--target", "h200"
    )


def test_an_unknown_target_lists_those_that_exist(registry: Registry, problem: Path) -> None:
    assert "h200" in invoke(registry, "optimize", str(problem), "--target", "h2000")


def test_without_a_gpu_and_a_target_the_remedy_is_named(registry: Registry, problem: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "--target" in invoke(registry, "optimize", str(problem))


def test_an_output_directory_that_cannot_be_written_is_named_before_anything_runs(
    registry: Registry, problem: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert "--out" in invoke(
        registry,
        "optimize",
        str(problem),
        "--target",
        "h200",
        "--out",
        str(tmp_path / "file" / "out"),
    )


def test_a_database_that_is_none_is_named(
    registry: Registry, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database, " * 100)
    monkeypatch.setenv("KMEM_DB", str(broken))
    assert str(broken) in invoke(
        registry, "optimize", str(problem), "--target", "h200", "--out", str(tmp_path / "out")
    )


def test_an_unknown_run_is_named(registry: Registry) -> None:
    assert "nope" in invoke(registry, "runs", "resume", "nope")


def test_a_usage_error_exits_2(registry: Registry, problem: Path) -> None:
    assert (
        CliRunner()
        .invoke(cli, ["optimize", str(problem), "--precision", "fp8"], obj=registry)
        .exit_code
        == 2
    )


@pytest.fixture
def ceilings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Device], Device]], None]:
    """Puts a function in the place of the measurement of a GPU, which is not there."""

    def install(measure: Callable[[Device], Device]) -> None:
        monkeypatch.setattr("kmem.measure.resources.gpu_uuid", lambda: "GPU-1")
        monkeypatch.setattr("kmem.run.setup.ceilings.measure_ceilings", measure)

    return install


def test_who_waits_while_a_gpu_is_measured_takes_what_was_found(
    ceilings_of: Callable[[Callable[[Device], Device]], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    database = tmp_path / "kmem.db"
    device = named_target("h200")
    found = list[Device]()
    measuring, known = threading.Event(), replace(device, dram_bytes_per_s=1.0, measured=True)

    def measure(device: Device) -> Device:
        measuring.set()
        time.sleep(0.3)  # the other one comes, and waits
        return known

    def start() -> None:
        with Memory(database) as memory:
            found.append(measured_ceilings(device, memory, print))

    ceilings_of(measure)
    Memory(database).close()
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert measuring.wait(10)
    for thread in threads:
        thread.join(10)
    assert found == [known, known]
    said = capsys.readouterr().out
    assert (said.count("measuring what this GPU can do"), said.count("waiting for the GPU")) == (
        1,
        1,
    )


def test_gpus_of_one_name_that_are_measured_at_once_have_the_same_ceilings(
    ceilings_of: Callable[[Callable[[Device], Device]], None], tmp_path: Path
) -> None:
    device = named_target("h200")
    first = replace(device, dram_bytes_per_s=1.0, measured=True)

    def measure(device: Device) -> Device:
        with Memory(tmp_path / "kmem.db") as beside:  # on the other GPU, under a lease of its own
            beside.devices.put_ceilings(first, {"torch": "2"})
        return replace(device, dram_bytes_per_s=2.0, measured=True)

    ceilings_of(measure)
    with Memory(tmp_path / "kmem.db") as memory:
        assert measured_ceilings(device, memory, print) == first
        assert memory.devices.ceilings(device.name) == first
