"""`kmem bench`: what is run, what is kept, what the numbers are.

The runs are made up, and once real.
"""

import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from click.testing import CliRunner, Result
from test_memory_store import RUN

from kmem.away.errand import Asked, begin_anew
from kmem.away.here import Here
from kmem.away.request import REQUEST, Request
from kmem.away.runner import CrewRunner
from kmem.bench.command import optimize_words
from kmem.bench.comparing import compare_rows, render_comparison
from kmem.bench.page import render_page, render_scores, render_table, shorten_command
from kmem.bench.problems import BenchProblem, choose_problems, find_problems
from kmem.bench.purse import Purse
from kmem.bench.results import BenchDirectory, Manifest, Settings, read_manifest, read_rows
from kmem.bench.rows import Exit, Row, RowStatus, make_row
from kmem.bench.schedule import BenchEvent, run_problems
from kmem.bench.scores import compute_scores
from kmem.bench.sharing import share_cores
from kmem.cli import cli
from kmem.cli.actions.bench_crew import open_bench_crew
from kmem.engines.desk import Desk
from kmem.engines.executor import Job, Wanted, Worker
from kmem.engines.local import LocalExecutor
from kmem.engines.scheduler import Listener, Work
from kmem.errors import NO_ROOM, RUN_AGAIN, OutputError, ProblemError, TargetError
from kmem.host.environment import own_cores
from kmem.host.visible_gpus import visible_gpus
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.records import RunState
from kmem.run.directory import RunDirectory

CONTRACT = "class Model:\n    pass\ndef get_inputs():\n    return []\n"
SETTINGS = Settings("match", "library", "h200", "rw", 4, 3.0)


def result(
    name: str, *, speedup: float | None = 2.0, estimated: bool = False, **changed: object
) -> dict[str, object]:
    """What `kmem optimize --json` prints, as far as the bench reads it.

    The baselines take 8 and 6 ms, the bound is 1.5 ms.
    """
    found = {
        "problem": name,
        "estimated": estimated,
        "status": "passed" if speedup else "baseline_is_best",
        "latency_ms": 6.0 / speedup if speedup else None,
        "speedup": speedup,
        "ratio_low": speedup and speedup - 0.1,
        "ratio_high": speedup and speedup + 0.1,
        "baselines_ms": {"eager": 8.0, "max_autotune": 6.0},
        "bound_ms": 1.5,
        "precision": "match",
        "purity": "library",
        "flags": [],
        "within_kernelbench": bool(speedup) or None,
    }
    return {**found, **changed}


def problem(name: str) -> BenchProblem:
    return BenchProblem(name, f"/problems/{name}.py", name * 4)


def ended(name: str, code: int = 0, stderr: str = "", **options: object) -> Exit:
    return Exit(
        code,
        "a line of the problem's own\n" + json.dumps(result(name, **options)) + "\n",
        stderr,
        12.34,
    )


def row(name: str, **options: object) -> Row:
    found = make_row(problem(name), ended(name, **options), measured=True)
    return replace(found, finished_at="2026-01-01T00:00:00+00:00")


def manifest(*names: str, **changed: object) -> Manifest:
    made = Manifest(
        SETTINGS,
        "h200",
        "NVIDIA H200",
        True,
        {"torch": "2.11"},
        "2026-01-01T00:00:00+00:00",
        ("kmem bench x",),
        tuple(map(problem, names)),
    )
    return replace(made, **changed)


# ---- which problems


def write(file: Path, text: str = CONTRACT) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def names(*paths: Path, level: int | None = None, only: tuple[str, ...] = ()) -> list[str]:
    return [found.name for found in find_problems(paths, level, only)]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A KernelBench checkout as it is, with a broken problem."""
    for name in ("1_Square", "10_3D", "2_Standard"):
        write(tmp_path / "kb" / "KernelBench" / "level1" / f"{name}.py", f"# {name}\n{CONTRACT}")
    write(tmp_path / "kb" / "KernelBench" / "level2" / "1_Conv.py", "def broken(:")
    write(tmp_path / "kb" / "src" / "eval.py", "import torch")
    return tmp_path / "kb"


def test_a_kernelbench_checkout_gives_a_level_in_the_order_of_its_ids(checkout: Path) -> None:
    assert names(checkout, level=1) == ["1_Square", "2_Standard", "10_3D"]
    assert names(checkout) == ["1_Square", "2_Standard", "10_3D", "1_Conv"]
    assert (
        names(checkout / "KernelBench", level=2)
        == names(checkout / "KernelBench" / "level2")
        == ["1_Conv"]
    )
    assert names(checkout, level=1, only=("1_*", "*3D")) == ["1_Square", "10_3D"]


def test_a_level_or_path_that_is_not_there_and_an_empty_selection_are_named(checkout: Path) -> None:
    with pytest.raises(ProblemError, match=r"no level 3 \(levels there: 1, 2\)"):
        find_problems([checkout], 3)
    with pytest.raises(ProblemError, match="No problem file or directory at .*nowhere"):
        find_problems([checkout / "nowhere"])
    with pytest.raises(ProblemError, match=r"whose name matches z\*"):
        find_problems([checkout], None, ["z*"])


def test_a_directory_gives_its_problem_directories_and_files_but_no_helpers(tmp_path: Path) -> None:
    write(tmp_path / "softmax" / "problem.py")
    write(tmp_path / "relu.py", CONTRACT + "# relu")
    write(tmp_path / "helpers.py", "import torch")
    broken = write(tmp_path / "broken.py", "def broken(:")
    assert names(tmp_path) == ["broken", "relu", "softmax"]
    assert names(broken, tmp_path / "softmax", tmp_path / "softmax" / "problem.py") == [
        "broken",
        "softmax",
    ]


def test_two_problems_of_one_name_are_refused_unless_they_are_the_same(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a" / "relu.py"), write(tmp_path / "b" / "relu.py")
    assert len(find_problems([first, second])) == 1
    second.write_text(CONTRACT + "# other")
    with pytest.raises(ProblemError, match="Two problems are called relu"):
        find_problems([first, second])


# ---- what a process's end says


FAILURES = [
    (Exit(1, "", "note\nError: no Model in x.py\n", 1.0), RowStatus.REFUSED, "no Model in x.py"),
    (Exit(2, "", "Error: No such option\n", 1.0), RowStatus.REFUSED, "No such option"),
    (
        Exit(1, "", "Traceback (most recent call last):\nValueError: bug\n\n", 1.0),
        RowStatus.CRASHED,
        "ValueError: bug",
    ),
    (
        Exit(-11, "", "half a line", 1.0),
        RowStatus.CRASHED,
        "killed by signal 11 (Segmentation fault)",
    ),
    (Exit(0, "no result\n", "", 1.0), RowStatus.CRASHED, "exit code 0 without a word"),
    (Exit(-2, "", "explore", 480.0, timed_out=True), RowStatus.TIMED_OUT, "no answer within 480 s"),
]


@pytest.mark.parametrize(("end", "status", "reason"), FAILURES, ids=[case[2] for case in FAILURES])
def test_a_failure_is_a_row_with_its_reason(end: Exit, status: RowStatus, reason: str) -> None:
    made = make_row(problem("x"), end, measured=True)
    assert (made.status, made.reason, made.result, made.ratio, made.time_ms) == (
        status,
        reason,
        None,
        1.0,
        None,
    )


def test_a_result_is_a_row_with_the_numbers_of_the_answer() -> None:
    won, lost = row("x", speedup=2.0), row("y", speedup=None, code=3)
    assert (
        won.status,
        won.seconds,
        won.ratio,
        won.time_ms,
        won.best_baseline,
        won.bound_fraction,
    ) == (
        RowStatus.PASSED,
        12.3,
        2.0,
        3.0,
        "max_autotune",
        0.5,
    )
    assert (lost.status, lost.speedup, lost.ratio, lost.time_ms, lost.bound_fraction) == (
        RowStatus.BASELINE_IS_BEST,
        None,
        1.0,
        6.0,
        0.25,
    )


@pytest.mark.parametrize("measured", [True, False])
def test_estimates_and_measurements_do_not_mix(measured: bool) -> None:
    assert (
        make_row(problem("x"), ended("x", estimated=measured), measured=measured).status
        is RowStatus.CRASHED
    )
    assert (
        make_row(problem("x"), ended("x", estimated=not measured), measured=measured).status
        is RowStatus.PASSED
    )


def test_a_row_with_a_result_cannot_be_a_failure() -> None:
    with pytest.raises(ValueError, match="if and only if"):
        Row("x", "", RowStatus.CRASHED, 1.0, "", result={})


# ---- the numbers


def test_scores_count_every_problem_and_one_without_an_improvement_as_one() -> None:
    crash = make_row(problem("d"), Exit(-9, "", "", 7.7), measured=True)
    scores = compute_scores(
        [
            row("a", speedup=4.0),
            row("b", speedup=1.01),
            row("c", speedup=None, code=3),
            crash,
            row("e", speedup=1.2),
        ]
    )
    assert (
        scores.problems,
        scores.faster,
        scores.baseline_is_best,
        scores.failed,
        scores.wins,
    ) == (5, 3, 1, 1, 2)
    assert scores.geometric_mean == pytest.approx((4.0 * 1.01 * 1.2) ** (1 / 5), rel=1e-12)
    assert (scores.median, scores.mean) == (1.01, pytest.approx(8.21 / 5, rel=1e-12))
    assert (scores.fast_1, scores.fast_1_2, scores.fast_2) == (0.6, 0.2, 0.2)
    assert scores.seconds == 56.9
    assert compute_scores([]) is None


def test_the_table_says_what_became_of_every_problem() -> None:
    crash = make_row(problem("d"), Exit(-9, "", "", 7.7), measured=True)
    table = render_table(
        [row("a", flags=["algebraic", "recalled"]), row("c", speedup=None, code=3), crash],
        ["later"],
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len({len(line) for line in table.splitlines()}) == 1
    assert cells[2] == [
        "a",
        "passed",
        "3",
        "max_autotune 6",
        "2.00 (1.90-2.10)",
        "50%",
        "match",
        "library",
        "yes",
        "algebraic, recalled",
        "12",
    ]
    assert cells[3] == [
        "c",
        "baseline_is_best",
        "6",
        "max_autotune 6",
        "1 (baseline)",
        "25%",
        "match",
        "library",
        "",
        "",
        "12",
    ]
    assert cells[4] == ["d", "crashed", "", "", "", "", "", "", "", "", "8"]
    assert cells[5] == ["later", "not run yet"] + [""] * 9


def test_the_page_gives_the_mean_without_rows_that_left_work_out() -> None:
    rows = [row("a", speedup=8.0, flags=["algebraic"]), row("b", speedup=2.0)]
    page = render_page(manifest("a", "b"), rows, None)
    assert (
        "- without the 1 flagged algebraic or degenerate: geometric mean 2.000 over 1 problems, "
        "wins 1\n" in page
    )
    assert "- without the" not in render_page(manifest("b"), rows[1:], None)


def test_kernelbenchs_tolerance_has_a_column_of_its_own() -> None:
    """A result from before the check says nothing about it."""
    beyond = row("a", flags=["beyond_kernelbench", "specialised"], within_kernelbench=False)
    old = row("b")
    old = replace(
        old,
        result={name: value for name, value in old.result.items() if name != "within_kernelbench"},
    )
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in render_table([beyond, old]).splitlines()
    ]
    assert [line[8:10] for line in (cells[0], *cells[2:])] == [
        ["1e-4", "flags"],
        ["no", "specialised"],
        ["", ""],
    ]


def test_the_speedup_under_cuda_graphs_stands_beside_that_of_calls() -> None:
    """Only where both were captured, and it counts for no mean."""
    both = row("a", speedup=1.2, captured_ms=2.0, captured_speedup=1.75)
    one = row("b", speedup=1.2, captured_ms=2.0, captured_speedup=None)
    assert (both.captured_ratio, one.captured_ratio, row("c").captured_ratio) == (1.75, None, None)
    flags = [
        line.strip("|").split("|")[9].strip() for line in render_table([both, one]).splitlines()[2:]
    ]
    assert flags == ["captured 1.75", ""] and both.ratio == 1.2


def test_a_command_with_many_numbered_problems_becomes_a_pattern_that_a_shell_expands_to_them(
    tmp_path: Path,
) -> None:
    names = ("7_add_.py", "10_mul.py", "99_last_one.py")
    for name in names:
        (tmp_path / name).touch()
    paths = " ".join(f"{tmp_path}/{name}" for name in names)
    short = shorten_command(f"kmem bench {paths} problems/a other/1_x.py --rounds 0")
    assert short == f"kmem bench {tmp_path}/{{7,10,99}}_*.py problems/a other/1_x.py --rounds 0"
    expanded = subprocess.run(
        ["bash", "-c", f"echo {short.split()[2]}"], capture_output=True, text=True, check=True
    ).stdout
    assert expanded.strip() == paths


def test_the_page_names_date_versions_device_command_and_failures() -> None:
    crash = make_row(problem("d"), Exit(-9, "", "", 7.7), measured=True)
    page = render_page(
        manifest("a", "d", "later"),
        [replace(crash, finished_at="2026-01-02"), row("a"), row("forgotten")],
        "results.png",
    )
    for expected in (
        "# Results measured on NVIDIA H200",
        "2026-01-01T00:00:00+00:00 to 2026-01-02",
        "torch 2.11",
        "`kmem bench x`",
        "2 problems: 1 faster",
        "(results.png)",
        "- d crashed: killed by signal 9",
        "not run yet",
    ):
        assert expected in page
    again = replace(manifest("a"), commands=("kmem bench x", "kmem bench x"))
    assert "`kmem bench x`, 2 times" in render_page(again, [row("a")], None)
    assert "authors" not in page, "a setting that is not set"
    assert "forgotten" not in page, "a row of a problem that the bench is no longer about"
    assert "ESTIMATED" not in page
    estimated = render_page(manifest("a", measured=False), [row("a")], None)
    assert "No GPU was used" in estimated and "ESTIMATED" in estimated and "![" not in estimated


# ---- the schedule


class Runner:
    """Ends each problem as told; records what was run and how many at once."""

    def __init__(self, **ends: Exit | BaseException) -> None:
        self.ends = ends
        self.ran = []
        self.most_at_once = 0
        self._running, self._lock = 0, threading.Lock()

    def __call__(
        self, asked: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit | None:
        with self._lock:
            self.ran.append(asked.name)
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        on_stage("explore", "candidates")
        time.sleep(0.05)
        with self._lock:
            self._running -= 1
        end = self.ends.get(asked.name) or ended(asked.name)
        if isinstance(end, BaseException):
            raise end
        return end


def run(
    root: Path,
    runner: Runner,
    *wanted: str,
    jobs: int = 1,
    on_event: Callable[[BenchEvent], None] = lambda event: None,
) -> list[Row]:
    with BenchDirectory(root) as directory:
        return run_problems(
            [problem(name) for name in wanted],
            runner,
            directory,
            on_event,
            jobs=jobs,
            measured=True,
        )


def test_a_crash_is_one_row_and_the_bench_goes_on(tmp_path: Path) -> None:
    events: list[BenchEvent] = []
    rows = run(tmp_path, Runner(b=Exit(-11, "", "", 1.0)), "a", "b", "c", on_event=events.append)
    assert [(found.problem, found.status.value) for found in rows] == [
        ("a", "passed"),
        ("b", "crashed"),
        ("c", "passed"),
    ]
    assert sorted(read_rows(tmp_path), key=lambda found: found.problem) == rows
    assert [(event.problem.name, event.stage, len(event.rows)) for event in events][:4] == [
        ("a", "start", 0),
        ("a", "explore", 0),
        ("a", "passed", 1),
        ("b", "start", 1),
    ]


@pytest.mark.parametrize(
    "lost",
    [
        Exit(-9, "", "", 1.0),
        Exit(1, "", "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA\n", 1.0),
        Exit(1, "", f"Error: Baseline eager ran before and fails now; {RUN_AGAIN}\n", 1.0),
    ],
)
@pytest.mark.parametrize("jobs", [1, 3])
def test_what_is_killed_or_loses_a_process_is_run_once_more_alone_and_says_so(
    tmp_path: Path, lost: Exit, jobs: int
) -> None:
    said: list[tuple[str, str]] = []

    class Once(Runner):
        def __call__(self, asked, on_stage, stop) -> Exit | None:
            if asked.name == "b" and self.ran.count("b"):
                assert self._running == 0
                del self.ends["b"]
            return super().__call__(asked, on_stage, stop)

    runner = Once(b=lost, d=lost)
    rows = run(
        tmp_path,
        runner,
        *"abcd",
        jobs=jobs,
        on_event=lambda event: said.append((event.stage, event.text)),
    )
    assert [found.failed for found in rows] == [False, False, False, True]
    assert sorted(runner.ran) == list("abbcdd")
    told = [text for stage, text in said if stage == "later"]
    assert len(told) == 2 and all(rows[3].reason in text for text in told)


def test_what_is_finished_is_not_repeated_but_a_changed_problem_is(tmp_path: Path) -> None:
    first = run(tmp_path, Runner(b=Exit(-11, "", "", 1.0)), "a", "b")
    again = Runner()
    assert run(tmp_path, again, "a", "b", "c")[:2] == first
    assert again.ran == ["c"]
    with BenchDirectory(tmp_path) as directory:
        changed = replace(problem("a"), source_hash="changed")
        (made,) = run_problems(
            [changed], again, directory, lambda event: None, jobs=1, measured=True
        )
    assert (again.ran, made.source_hash) == (["c", "a"], "changed")


def test_a_line_that_a_kill_tore_is_run_again(tmp_path: Path) -> None:
    run(tmp_path, Runner(), "a", "b")
    lines = (tmp_path / "results.jsonl").read_bytes()
    (tmp_path / "results.jsonl").write_bytes(lines[:-20])
    again = Runner()
    assert [found.problem for found in run(tmp_path, again, "a", "b")] == ["a", "b"]
    assert again.ran == ["b"]
    assert len(read_rows(tmp_path)) == 2


def test_as_many_run_at_once_as_there_are_jobs(tmp_path: Path) -> None:
    class Meeting(Runner):
        """Each problem waits for another one that runs beside it."""

        meeting = threading.Barrier(2, timeout=30)

        def __call__(
            self, asked: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
        ) -> Exit | None:
            self.meeting.wait()
            return super().__call__(asked, on_stage, stop)

    starts: list[tuple[str, int]] = []
    runner = Meeting(a=Exit(1, "", "Error: no", 1.0))
    rows = run(
        tmp_path,
        runner,
        *"abcdef",
        jobs=2,
        on_event=lambda event: (
            event.stage == "start" and starts.append((event.problem.name, len(event.rows)))
        ),
    )
    assert [found.problem for found in rows] == list("abcdef")
    assert starts[:3] == [("a", 0), ("b", 0), ("c", 1)]
    assert runner.most_at_once <= 2


def test_a_problem_without_room_beside_others_is_run_again_alone_at_the_end(tmp_path: Path) -> None:
    crowded = Exit(
        1, "", f"Error: b.py {NO_ROOM} to be judged: CUDA out of memory; make it smaller", 1.0
    )
    beside: list[tuple[str, int]] = []

    class Crowded(Runner):
        def __call__(
            self, asked: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
        ) -> Exit | None:
            with self._lock:
                beside.append((asked.name, self._running))
            if asked.name in "bc" and self.ran.count(asked.name):
                self.ends.pop("b" if asked.name == "b" else "none", None)
            return super().__call__(asked, on_stage, stop)

    runner, stages = Crowded(b=crowded, c=crowded), []
    rows = run(
        tmp_path,
        runner,
        *"abcde",
        jobs=3,
        on_event=lambda event: stages.append((event.problem.name, event.stage)),
    )
    assert [(found.problem, found.status.value) for found in rows] == [
        ("a", "passed"),
        ("b", "passed"),
        ("c", "refused"),
        ("d", "passed"),
        ("e", "passed"),
    ]
    assert sorted(runner.ran[-2:]) == ["b", "c"] and len(runner.ran) == 7
    assert all(count == 0 for _, count in beside[-2:])
    assert {("b", "later"), ("c", "later")} <= set(stages)


def test_an_interrupt_ends_what_runs_and_keeps_what_ended(tmp_path: Path) -> None:
    stopped = []

    def runner(
        asked: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit | None:
        if asked.name == "a":
            return ended("a")
        on_stage("measure", "")
        stopped.append((asked.name, stop.wait(30)))
        return None

    def interrupt(event: BenchEvent) -> None:
        if event.stage == "measure":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, runner, "a", "b", "c", on_event=interrupt)
    assert stopped == [("b", True)]
    assert [found.problem for found in read_rows(tmp_path)] == ["a"]


def test_a_bug_of_the_runner_is_not_a_row(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, Runner(a=ZeroDivisionError("bug")), "a", "b")
    assert read_rows(tmp_path) == []


# ---- the directory


def test_two_benches_do_not_write_to_one_directory(tmp_path: Path) -> None:
    with (
        BenchDirectory(tmp_path),
        pytest.raises(OutputError, match="Another kmem bench"),
        BenchDirectory(tmp_path),
    ):
        pass


def test_pieces_of_a_bench_join_if_they_agree_on_everything_results_depend_on(
    tmp_path: Path,
) -> None:
    first = manifest("a", "b")
    with BenchDirectory(tmp_path) as directory:
        directory.write_manifest(first)
    assert read_manifest(tmp_path) == first
    moved = replace(problem("b"), path="/elsewhere/b.py")
    joined = first.extend(
        manifest("c", commands=("kmem bench y",), problems=(moved, problem("c"))), tmp_path
    )
    assert joined.problems == (problem("a"), moved, problem("c"))
    assert joined.commands == ("kmem bench x", "kmem bench y")
    numbered = first.extend(manifest("c", problems=(problem("10_b"), problem("9_a"))), tmp_path)
    assert [each.name for each in numbered.problems] == ["9_a", "10_b", "a", "b"]
    for changed in (
        {"device_name": "NVIDIA H100"},
        {"measured": False},
        {"versions": {"torch": "2.12"}},
        {"settings": replace(SETTINGS, rounds=0)},
    ):
        with pytest.raises(OutputError, match="choose another directory"):
            first.extend(manifest("c", **changed), tmp_path)


def test_a_file_that_is_no_manifest_or_no_row_is_named(tmp_path: Path) -> None:
    assert (read_manifest(tmp_path), read_rows(tmp_path)) == (None, [])
    write(tmp_path / "manifest.json", "{}")
    write(tmp_path / "results.jsonl", '{"problem": "a"}\n')
    with pytest.raises(OutputError, match=r"manifest\.json"):
        read_manifest(tmp_path)
    with pytest.raises(OutputError, match="line 1"):
        read_rows(tmp_path)


def test_failed_rows_are_forgotten_to_be_run_again_and_others_are_kept(tmp_path: Path) -> None:
    failed = replace(row("b"), status=RowStatus.CRASHED, reason="killed", result=None)
    other = replace(failed, problem="c", source_hash="cccc")
    with BenchDirectory(tmp_path) as directory:
        for each in (row("a"), failed, other):
            directory.append(each)
        assert directory.forget_failed({problem("a").key, failed.key}) == [failed.key]
        directory.append(row("d"))
    assert [each.problem for each in read_rows(tmp_path)] == ["a", "c", "d"]


def test_the_first_and_a_sample_that_grows_are_chosen_in_order() -> None:
    found = [problem(f"{number}_p") for number in range(20)]
    assert choose_problems(found, 3, None) == found[:3]
    few, more = choose_problems(found, None, 5), choose_problems(found, None, 9)
    assert (len(few), len(more)) == (5, 9) and set(few) < set(more)
    assert few != found[:5] and few == [each for each in found if each in few]
    assert choose_problems(found, None, 99) == found


# ---- two benches


def test_two_benches_are_paired_row_by_row_with_intervals() -> None:
    first = [row("a", measurements=30), row("b", speedup=None, measurements=30), row("c")]
    second = [
        row("a", speedup=3.0, measurements=10),
        row("b", speedup=1.5, measurements=20),
        row("d"),
    ]
    found = compare_rows(first, second)
    assert [pair.gain for pair in found.pairs] == [1.5, 1.5]
    assert found.pairs[0].bounds == pytest.approx((2.9 / 2.1, 3.1 / 1.9))
    assert found.pairs[1].bounds == pytest.approx((1.4, 1.6)), "the module itself is exact"
    assert (found.gain, found.gain_bounds) == (pytest.approx(1.5), pytest.approx((1.5, 1.5)))
    assert found.measurements == pytest.approx(0.5)
    assert 1 / 3 <= found.measurements_bounds[0] < 0.5 < found.measurements_bounds[1] <= 2 / 3
    assert (found.faster, found.slower, found.unpaired) == (2, 0, ("c", "d"))
    back = compare_rows(second, first)
    assert (back.faster, back.slower) == (0, 2)
    within = compare_rows([row("a")], [row("a", speedup=2.03)])
    assert (within.faster, within.slower, within.measurements) == (0, 0, None)
    assert compare_rows([row("a")], [row("b")]) is None
    text = render_comparison(found, {"first": "control", "second": "search"})
    assert "1.500 (1.500 to 1.500) times as fast as those of control" in text
    assert "Not in both: c, d." in text


# ---- the process


class Script(Here):
    """Runs a piece of Python instead of a run of kmem."""

    def job(self, worker: Worker) -> Job:
        return Job(("python", "-c", str(self.asked.problem)), {}, {})


def script(
    root: Path,
    code: str,
    on_stage: Callable[[str, str], None] = lambda *_: None,
    *,
    minutes: float = 3.0,
) -> Exit | None:
    crew = LocalExecutor().hire(Wanted(gpus=0, cpus=1), lambda text: None)
    with BenchDirectory(root), Desk(crew, lambda text: None) as desk:
        runner = CrewRunner(
            desk,
            lambda problem: replace(SETTINGS, minutes=minutes),
            root,
            lambda asked, on_line, on_end: Script(asked, on_line, on_end, {}),
            gpu=False,
        )
        return runner(BenchProblem("x", code, "x" * 8), on_stage, threading.Event())


def test_a_run_is_asked_for_what_the_bench_was_asked_for(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    words = optimize_words(SETTINGS, "/problems/a.py", out)
    assert words == [
        "optimize",
        "/problems/a.py",
        "--precision",
        "match",
        "--purity",
        "library",
        "--memory",
        "rw",
        "--rounds",
        "4",
        "--strategy",
        "bandit",
        "--minutes",
        "3.0",
        "--candidates",
        "12",
        "--baselines",
        "eager,compile,max_autotune",
        "--target",
        "h200",
        "--out",
        out,
        "--json",
    ]
    assert "--target" not in optimize_words(replace(SETTINGS, target=None), "/problems/a.py", out)


def test_a_run_is_told_its_models_and_what_they_may_cost() -> None:
    asks = ("--author", "both", "-m", "openai/any", "--base-url", "http://localhost:1/v1")
    words = optimize_words(replace(SETTINGS, authors=asks), "a.py", "run", 0.25)
    assert words[-7:] == [*asks, "--json"]
    assert words[words.index("--usd") + 1] == "0.250000"
    without = optimize_words(SETTINGS, "a.py", "run", 0.25)
    assert "--usd" not in without, "no model is asked"


@pytest.mark.parametrize(
    ("state", "gpu", "paid", "goes_on"),
    [
        (RunState.RUNNING, "0", False, True),  # the bench was killed
        (RunState.FINISHED, "0", False, True),  # it was killed before it had the row
        (RunState.FAILED, "0", False, False),
        (RunState.RUNNING, "1", False, False),  # figures never cross GPUs
        (RunState.RUNNING, "1", True, True),  # but no answer is paid for twice
        (RunState.FAILED, "0", True, True),
    ],
)
def test_a_run_of_a_killed_bench_goes_on_where_it_was(
    tmp_path: Path, state: RunState, gpu: str, paid: bool, goes_on: bool
) -> None:
    out = tmp_path / "runs" / "a"
    run = replace(RUN, out_dir=str(out))
    with Memory() as memory:
        memory.runs.start(run)
        memory.runs.set_state(run.id, state)
    asked = Asked(tmp_path / "a.py", lambda file, out: ["anew"], out, paid=paid)
    errand = Here(asked, lambda text: None, lambda result: None, {"MORE": "1"})
    first = errand.job(Worker("w", "here", "0"))
    assert Request.from_json(first.files[REQUEST]).words == ("anew",)
    assert first.environment["MORE"] == "1" and Request.from_json(first.files[REQUEST]).place
    RunDirectory(out).own(run)
    (out / "measured").touch()
    words = Request.from_json(errand.job(Worker("w", "here", gpu)).files[REQUEST]).words
    assert words == (("runs", "resume", run.id, "--json") if goes_on else ("anew",))
    assert (out / "measured").exists() is goes_on
    begin_anew(out)  # as --retry-failed says
    RunDirectory(out).own(run)
    words = Request.from_json(errand.job(Worker("w", "here", gpu)).files[REQUEST]).words
    assert words == (("runs", "resume", run.id, "--json") if paid else ("anew",))


# ---- dollars


def test_a_purse_shares_what_is_left_and_is_empty_when_it_pays_for_no_more() -> None:
    spent = {"a": 0.0, "b": 0.0, "c": 0.0}
    problems = [problem(name) for name in spent]
    purse = Purse(1.0, problems, lambda each: spent[each.name], jobs=2)
    with purse.share(problems[0]) as first, purse.share(problems[1]) as second:
        assert (first, second) == (0.5, 0.5)
        spent.update(a=0.3, b=0.4)
    assert purse.spent == pytest.approx(0.7)
    assert purse.is_empty, "0.3 is left, and a problem takes 0.35"
    richer = Purse(2.0, problems, lambda each: spent[each.name])
    assert not richer.is_empty
    with richer.share(problems[1]) as again:
        assert again == pytest.approx(1.7), "what it has spent before is in its share"
    careful = Purse(1.0, problems, lambda each: spent[each.name] / 100)
    assert not careful.is_empty
    with careful.share(problems[2]):
        careful.was_spent(problems[2])
    assert careful.is_empty, "not a question was put for all that is left"


def test_a_bench_without_money_ends_with_the_rows_it_has(tmp_path: Path) -> None:
    done: list[str] = []

    def runner(
        each: BenchProblem, on_stage: Callable[[str, str], None], stop: threading.Event
    ) -> Exit:
        done.append(each.name)
        return ended(each.name)

    problems = [problem(name) for name in "abcd"]
    with BenchDirectory(tmp_path) as directory:
        for limit in (2, 4):
            rows = run_problems(
                problems,
                runner,
                directory,
                lambda event: None,
                jobs=1,
                measured=True,
                may_start=lambda limit=limit: len(done) < limit,
            )
            assert [each.problem for each in rows] == list("abcd")[:limit]


def test_scores_say_what_models_cost_for_each_win() -> None:
    usage = [{"role": "total", "calls": 3, "usd": 0.5}]
    paid = [row("a", usage=usage), row("b", speedup=None, usage=usage), row("c")]
    scores = compute_scores(paid)
    assert (scores.usd, scores.wins, scores.usd_per_win) == (1.0, 2, 0.5)
    told = render_scores(scores, measured=True)
    assert told.endswith("\nlanguage models cost 1.0000 USD, 0.5000 for each win")
    assert compute_scores([row("c")]).usd is None


def test_each_run_sees_one_gpu_and_no_more_than_its_share_run_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("engines.local", "cli.actions.bench_crew"):
        monkeypatch.setattr(f"kmem.{module}.visible_gpus", lambda count: ["2", "GPU-5"][:count])
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(60)"
    began: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Told(Listener):
        def said(self, worker: Worker, stream: str, text: str) -> None:
            began.put(text)

    where = SimpleNamespace(executor="local", address="auto")
    options = SimpleNamespace(gpus=2, jobs=2, ahead=0, where=where)
    with open_bench_crew(tmp_path, options, collect(build_plugin_manager())) as crew:
        for number in range(5):
            job = Job(("python", "-c", code), {}, {})
            crew.desk.add(Work(f"w{number}", lambda worker, job=job: job, Told(), gpu=True))
        seen = [began.get(timeout=60) for _ in range(4)]
        assert began.empty(), "the fifth waits"
    assert (crew.at_once, crew.gpu) == (4, True)
    assert sorted(seen) == ["2", "2", "GPU-5", "GPU-5"]


def test_problems_that_run_at_once_share_the_cores_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("KMEM_CORES", raising=False)

    def told(gpus: int, jobs: int) -> tuple[str | None, str | None]:
        found = share_cores(tmp_path, gpus, jobs).environment
        return found.get("KMEM_CORES"), found.get("OMP_NUM_THREADS")

    assert told(0, 1) == (None, None)
    assert told(2, 5) == ("2", None)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert told(0, 5) == ("3", "3")
    assert told(0, 40) == ("1", "1")
    assert share_cores(tmp_path, 0, 40).crowded == 2.5
    monkeypatch.setenv("KMEM_CORES", "2")
    assert told(0, 5) == (None, "3")


def test_cores_are_a_number_or_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, cores in (("3", 3), ("0", 1), ("many", None), ("", None)):
        monkeypatch.setenv("KMEM_CORES", told)
        assert own_cores() == cores


def test_gpus_are_called_as_the_environment_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert visible_gpus(2) == ["3", "GPU-5"]
    assert visible_gpus(1) == ["3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_gpus(2) == ["0", "1"]
    with pytest.raises(TargetError, match="There are 2 GPUs here, not 3"):
        visible_gpus(3)


def test_a_process_reports_stages_and_keeps_its_words(tmp_path: Path) -> None:
    stages = []
    code = (
        "import sys; print('{}'); print('explore     two [x] ways  [nothing passed yet]\\na "
        "warning', file=sys.stderr); sys.exit(3)"
    )
    end = script(tmp_path, code, lambda *stage: stages.append(stage))
    assert stages == [("explore", "two [x] ways")]
    assert (end.code, end.stdout, end.timed_out) == (3, "{}\n", False)
    assert end.stderr.endswith("a warning\n")
    assert (tmp_path / "logs" / "x-xxxxxxxx.log").read_text() == end.stderr


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python has started by then, on a busy machine too
    monkeypatch.setattr("kmem.bench.command._LIMIT_EXTRA_S", 4.0)
    monkeypatch.setattr("kmem.engines.local.GRACE_S", 0.5)
    end = script(
        tmp_path,
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)",
        minutes=0.001,
    )
    assert (end.code, end.timed_out) == (-signal.SIGKILL, True)
    assert end.seconds < 40


# ---- for real

PROBLEM = """
import torch
ROWS = 512
COLS = 4096
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) * 2.0
def get_inputs():
    return [torch.randn(ROWS, COLS)]
"""


def bench(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = {**kept, "KMEM_DB": str(home / "kmem.db"), "KMEM_EMBEDDING_MODEL": "none"}
    return warm.run("bench", *args, timeout=500, env=environment, cwd=home)


def bench_here(*words: str) -> Result:
    registry = collect(build_plugin_manager())
    return CliRunner().invoke(cli, ["bench", *words], obj=registry)


@pytest.mark.slow
def test_a_bench_of_a_good_and_a_bad_problem_without_a_gpu(tmp_path: Path) -> None:
    write(tmp_path / "level1" / "1_silu.py", PROBLEM)
    write(tmp_path / "level1" / "2_broken.py", PROBLEM.replace("silu(x)", "silu(x, 1, 2, 3)"))
    first = bench(
        tmp_path,
        "level1",
        "--target",
        "h200",
        "--rounds",
        "0",
        "--candidates",
        "1",
        "--resume",
        "out",
        "--jobs",
        "2",
        "--json",
    )
    assert first.returncode == 1, first.stderr
    printed = json.loads(first.stdout)
    assert [(found["problem"], found["status"]) for found in printed["rows"]] == [
        ("1_silu", "passed"),
        ("2_broken", "refused"),
    ]
    assert printed["rows"][0]["result"]["estimated"] is True
    assert printed["manifest"]["measured"] is False
    assert printed["scores"]["geometric_mean"] == pytest.approx(
        printed["rows"][0]["result"]["speedup"] ** 0.5
    )
    assert "2/2 done" in first.stderr
    for name in ("results.jsonl", "manifest.json", "results.md", "results.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0

    lines = (tmp_path / "out" / "results.jsonl").read_text()
    out, level = str(tmp_path / "out"), str(tmp_path / "level1")
    again = bench_here("--resume", out)
    assert again.exit_code == 1, again.stderr
    assert (tmp_path / "out" / "results.jsonl").read_text() == lines
    assert (
        "ESTIMATED" in again.stdout
        and "1_silu" in again.stdout
        and "2_broken refused:" in again.stdout
    )

    other = bench_here(level, "--target", "h100", "--resume", out)
    assert other.exit_code == 1
    assert other.stderr.startswith(f"Error: The results in {out} were made with settings")
    page = tmp_path / "page.md"
    subprocess.run(
        [
            sys.executable,
            Path(__file__).parent.parent / "tools" / "write_results_page.py",
            tmp_path / "out",
            "--page",
            page,
        ],
        check=True,
    )
    assert page.read_text().startswith("# Results estimated for NVIDIA H200")
    assert page.with_suffix(".png").stat().st_size > 0


@pytest.mark.slow
def test_a_termination_ends_the_bench_with_its_table_and_says_how_to_go_on(tmp_path: Path) -> None:
    write(tmp_path / "silu.py", PROBLEM)
    process = warm.WarmPopen(
        [sys.executable, "-m", "kmem", "bench", "silu.py", "--target", "h200", "--resume", "out"],
        cwd=tmp_path,
        env={**os.environ, "KMEM_EMBEDDING_MODEL": "none"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:
        if " start " in line:
            break
    process.terminate()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "kmem bench --resume out" in stderr and "Traceback" not in stderr
    assert "not run yet" in stdout
    assert read_rows(tmp_path / "out") == []


def test_a_database_that_no_run_could_open_is_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "other.db", tmp_path / "out"
    with closing(sqlite3.connect(path)) as other:
        other.execute("create table songs (title text)")
        other.commit()
    monkeypatch.setenv("KMEM_DB", str(path))
    problem = Path(__file__).parent.parent / "problems" / "softmax.py"
    refused = bench_here(str(problem), "--resume", str(out))
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "belongs to another program" in refused.stderr
    assert not out.exists()


def test_nothing_to_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    nothing = bench_here("--resume", out)
    assert (nothing.exit_code, "Name problem files" in nothing.stderr) == (2, True)
    both = bench_here(".", "--record", out, "--sync")
    assert (both.exit_code, "not with --record" in both.stderr) == (2, True)
    nowhere = bench_here(str(tmp_path / "nowhere"), "--target", "h200", "--resume", out)
    assert (nowhere.exit_code, nowhere.stderr.count("\n"), "nowhere" in nowhere.stderr) == (
        1,
        1,
        True,
    )
    assert not (tmp_path / "out").exists()
