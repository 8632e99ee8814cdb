"""Runs on workers: what they commit is carried home, and a lost one goes on where it was."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_bench import PROBLEM, SETTINGS

from kmem.away.ceilings import compare_rates
from kmem.away.errand import Asked
from kmem.away.here import Here
from kmem.away.home import Home
from kmem.away.runner import CrewRunner
from kmem.away.there import There
from kmem.bench.problems import BenchProblem
from kmem.bench.rows import Exit, RowStatus, make_row
from kmem.cli.actions.bench_crew import BenchCrew
from kmem.devices import named_target
from kmem.engines.card import Card, marks_of, read_answer, unfit_for
from kmem.engines.desk import Desk
from kmem.engines.executor import JobResult, Wanted
from kmem.engines.local import LocalExecutor
from kmem.engines.scheduler import Work
from kmem.memory.store import Memory
from kmem.records import Budget, Contract, Problem, Run, RunState


@pytest.fixture
def bench_directory(tmp_path: Path) -> Path:
    for name in ("logs", "runs"):
        (tmp_path / "bench" / name).mkdir(parents=True)
    return tmp_path / "bench"


def silu(tmp_path: Path) -> BenchProblem:
    file = tmp_path / "problems" / "silu.py"
    file.parent.mkdir()
    file.write_text(PROBLEM.replace("ROWS = 512", "ROWS = 4").replace("COLS = 4096", "COLS = 64"))
    return BenchProblem("silu", str(file), "0123456789abcdef")


def run_away(
    tmp_path: Path, directory: Path, problem: BenchProblem
) -> tuple[Exit | None, list[str]]:
    """Run a problem on a local worker that shares nothing with the memory of the bench."""
    notes: list[str] = []
    home = Home(directory / "copies", tmp_path / "home" / "kmem.db")
    crew = LocalExecutor().hire(Wanted(gpus=0, cpus=1), notes.append)
    with Desk(crew, notes.append, home.close) as desk:
        settings = replace(SETTINGS, rounds=0, minutes=5.0, candidates=3, baselines="eager")
        runner = CrewRunner(
            desk,
            lambda problem: settings,
            directory,
            lambda asked, on_line, on_end: There(asked, home, on_line, on_end),
            gpu=False,
        )
        return runner(problem, lambda stage, text: None, threading.Event()), notes


def rows_of(memory: Memory, table: str) -> list[dict]:
    return memory.storage.read(f"select * from {table}")


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_with_what_it_had_and_comes_home(
    tmp_path: Path, bench_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "worker" / "kmem.db"))  # what a worker has
    problem = silu(tmp_path)
    run_directory = bench_directory / "runs" / problem.key
    database = tmp_path / "home" / "kmem.db"
    database.parent.mkdir()
    Memory(database).close()
    seen: list[str] = []

    def kill_when_something_was_tried() -> None:
        with Memory.to_read(database) as memory:
            while not over.wait(0.05):
                if found := rows_of(memory, "attempts"):
                    seen.extend(row["kernel"] for row in found)
                    kill_away_process()
                    return

    over = threading.Event()
    killer = threading.Thread(target=kill_when_something_was_tried)
    killer.start()
    end, _ = run_away(tmp_path, bench_directory, problem)
    over.set()
    killer.join()
    assert seen and end is not None and end.code == -signal.SIGKILL

    end, notes = run_away(tmp_path, bench_directory, problem)
    row = make_row(problem, end, measured=False)
    assert row.status in (RowStatus.PASSED, RowStatus.BASELINE_IS_BEST), end.stderr
    assert row.result["report"] == str(run_directory / "report.md") and notes == []
    assert (run_directory / "report.md").is_file()
    with Memory(database) as memory:
        (entry,) = memory.run_entries.all()  # the same run
        kernels = [row["kernel"] for row in rows_of(memory, "attempts")]
        # the first ones are those of before, and none was tried twice
        assert kernels[: len(seen)] == seen and len(kernels) == len(set(kernels))
        assert entry.state is RunState.FINISHED and entry.run.out_dir == str(run_directory)
        assert entry.run.problem.path == problem.path
    assert not (tmp_path / "worker" / "kmem.db").exists()


def kill_away_process() -> None:
    """Kill the worker's side of a run, and nothing else of this machine."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            of_us = int(
                (Path("/proc") / str(parent) / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except (OSError, ValueError, IndexError):
            continue
        if b"kmem.away.process" in words and of_us == os.getpid() and b"-S" not in words:
            os.kill(int(process.name), signal.SIGKILL)


VERSIONS = (("kmem", "0.1.0"), ("torch", "2.11"))
ANSWER = "GPU-1a, NVIDIA H200, 570.1, 1980, 700.00, 41, 0x0000000000000000\n"


def test_a_card_is_read_from_what_nvidia_smi_answers() -> None:
    card = read_answer(ANSWER, "4711\n4712\n", VERSIONS)
    assert (card.uuid, card.name, card.others) == ("GPU-1a", "NVIDIA H200", 2)
    assert card.max_clock_mhz == 1980
    assert not card.slowed and Card.from_json(card.to_json()) == card
    part = read_answer(ANSWER.replace("700.00", "[N/A]"), "", VERSIONS)
    assert part.power_limit_w == 0.0
    assert read_answer("", "", VERSIONS).uuid == ""


@pytest.mark.parametrize(
    ("answer", "versions", "unfit", "marks"),
    [
        (ANSWER, VERSIONS, [], []),
        (ANSWER.replace("H200", "H100"), VERSIONS, ["it is a NVIDIA H100, not a NVIDIA H200"], []),
        (ANSWER, (("kmem", "0.1.0"), ("torch", "2.12")), ["torch 2.12, not 2.11"], []),
        (ANSWER.replace("1980", "1755"), VERSIONS, ["highest clock 1755, not 1980"], []),
        (ANSWER.replace("700.00", "690.00"), VERSIONS, [], []),
        (ANSWER.replace("700.00", "500.00"), VERSIONS, ["power limit 500, not 700"], []),
        (ANSWER.replace("570.1", "575.2"), VERSIONS, [], ["driver 575.2, others 570.1"]),
        (ANSWER.replace(" 41,", " 86,"), VERSIONS, [], ["86 degrees"]),
        (
            ANSWER.replace("0x0000000000000000", "0x0000000000000020"),
            VERSIONS,
            [],
            ["its clock is lowered for power or heat"],
        ),
        ("", VERSIONS, ["it is a machine without a GPU, not a NVIDIA H200"], None),
    ],
)
def test_what_differs_between_cards_is_unfit_or_marked(
    answer: str, versions, unfit: list[str], marks: list[str] | None
) -> None:
    reference = read_answer(ANSWER, "", VERSIONS)
    card = read_answer(answer, "", versions)
    found = unfit_for(card, reference)
    assert found[: len(unfit)] == unfit and bool(found) == bool(unfit)
    if marks is not None:
        assert marks_of(card, reference) == marks


def test_rates_that_differ_by_more_than_three_in_a_hundred_are_named() -> None:
    device = named_target("h200")
    near = replace(device, dram_bytes_per_s=device.dram_bytes_per_s * 0.98)
    far = replace(device, dram_bytes_per_s=device.dram_bytes_per_s * 0.95)
    assert compare_rates(near, device) == []
    (reason,) = compare_rates(far, device)
    assert reason.startswith("copying at ")


def test_problems_that_took_longest_before_are_begun_first_and_unknown_ones_before_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    with Memory() as memory:
        for number, (name, seconds) in enumerate((("short", 5.0), ("long", 50.0))):
            problem = Problem(name, f"{name}.py", PROBLEM)
            place = str(tmp_path / name)
            run = Run(
                f"r{number}", problem, "h200", Contract(), Budget(), "rw", 0, place, "2026-01-01"
            )
            memory.runs.start(run)
            memory.runs.put_seconds_spent(run.id, seconds)
    names = ("short", "new", "long")
    problems = [BenchProblem(name, f"{name}.py", "0" * 16) for name in names]
    crew = BenchCrew(None, tmp_path, False, 1, None, dict)
    assert [problem.name for problem in crew.longest_first(problems)] == ["new", "long", "short"]


def test_a_control_gets_its_own_number_of_candidates_for_each_problem(
    tmp_path: Path, bench_directory: Path
) -> None:
    told: list[list[str]] = []

    class Full:
        """A desk at which nothing is done."""

        def add(self, work: Work) -> None:
            work.listener.gave_up("no room")

    def make(asked: Asked, on_line: object, on_end: Callable[[JobResult], None]) -> Here:
        told.append(list(asked.words("a.py", "out")))
        return Here(asked, on_line, on_end, {})

    crew = BenchCrew(Full(), bench_directory, False, 1, make, dict)
    problem = silu(tmp_path)
    for candidates in ({problem.key: 37}, {}):
        end = crew.runner(SETTINGS, [problem], candidates, None)(
            problem, lambda stage, text: None, threading.Event()
        )
        assert end is not None and (end.code, end.stderr) == (1, "Error: no room\n")
    assert [words[words.index("--candidates") + 1] for words in told] == ["37", "12"]
