"""The run directory and the report: whole files, every attempt with its reason, estimates named."""

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kmem.errors import OutputError
from kmem.memory.runs.runs import RoundDiagnosis, RoundPlan, Verdict
from kmem.records import (
    Attempt,
    Baseline,
    Bottleneck,
    Bound,
    Budget,
    Candidate,
    Contract,
    Diagnosis,
    Kernel,
    Measurement,
    Move,
    Plan,
    Prescription,
    Problem,
    Run,
    RunResult,
    Signature,
    SiteChoice,
    Status,
    Task,
    Timing,
)
from kmem.run.directory import RunDirectory, default_run_directory, is_worked_on
from kmem.run.report.finished import Executable, FinishedRun, count_judged
from kmem.run.report.first_screen import FLAGS, summarise
from kmem.run.report.report import render_report, write_report
from kmem.serialize import to_json

RUN = Run(
    "r1",
    Problem("p", "/p.py", "source"),
    "h200",
    Contract(),
    Budget(),
    "rw",
    0,
    "/tmp/x",
    "2026-01-01",
)


def attempt(number: int, latency_ms: float | None, *, estimated: bool = False) -> Attempt:
    kernel = Kernel(
        f"# kernel {number}",
        choices=(SiteChoice("relu", "pointwise", "fuse", (("BLOCK", 16 * number),)),),
    )
    if latency_ms is None:
        measurement = Measurement(
            Status.WRONG_VALUES, None, estimated, log="first line\nerror 3e-2 above 1e-6 | seed 4"
        )
    else:
        measurement = Measurement(
            Status.PASSED,
            Timing(
                latency_ms, latency_ms, latency_ms, 30, "compile", 2.0, 2.0 / latency_ms, 1.9, 2.1
            ),
            estimated,
        )
    return Attempt(
        1,
        Candidate(kernel, Task(Move.TUNE, "fuse", None, 1, "try a wider block"), "recipes"),
        measurement,
        2.0,
    )


def result(best: Attempt | None, *, estimated: bool = False) -> RunResult:
    baselines = (
        Baseline("eager", Timing(3.0, 2.9, 3.1, 30), estimated),
        Baseline("compile", Timing(2.0, 1.9, 2.1, 30), estimated),
        Baseline("max_autotune", None, estimated, log="it broke"),
    )
    speedup = 2.0 / best.measurement.latency_ms if best else None
    light = 0.8 / best.measurement.latency_ms if best else None
    return RunResult(
        "r1",
        "p",
        "h200",
        estimated,
        best,
        baselines,
        Bound(10**9, {"fp32": 1e9}, 0.8, "bytes"),
        speedup,
        light,
        False,
        3,
        12.0,
        "done",
    )


def test_the_summary_names_baseline_interval_and_bound() -> None:
    assert (
        summarise(result(attempt(1, 1.0)))
        == "1 ms on h200, 2.00x compile (95% interval 1.90-2.10), 80% of the speed of light."
    )


def test_an_estimate_is_called_one_and_no_win_is_said_plainly() -> None:
    assert summarise(result(attempt(1, 1.0, estimated=True), estimated=True)).startswith(
        "Estimated 1 ms"
    )
    assert summarise(result(None)).startswith("No kernel beat the best baseline")


def test_the_report_tells_every_attempt_with_knobs_status_and_reason() -> None:
    diagnosis = Diagnosis(
        Bottleneck.LATENCY, (), Signature({}), 0.4, 1.0, "Too little in flight.", None
    )
    entry = RoundDiagnosis(
        1, "a" * 64, diagnosis, (Prescription("fill-the-grid", 1.0, ("treats latency",)),)
    )
    attempts = [attempt(1, 1.0), attempt(2, None)]
    finished = FinishedRun(RUN, result(attempts[0]), attempts, [entry], notes=["a note"])
    text = render_report(finished, plotted=True)
    first, second = (attempt.candidate.kernel.hash[:12] for attempt in attempts)
    assert (
        f"| 1 | 1 | `{first}` |  | tune | fuse | BLOCK=16 | passed | 1 | 2.00x | try a wider "
        f"block |"
    ) in text
    refused = "wrong_values |  |  | try a wider block -- error 3e-2 above 1e-6 / seed 4"
    assert f"| 2 | 1 | `{second}` |  | tune | fuse | BLOCK=32 | {refused} |" in text
    child = replace(
        attempts[0],
        candidate=replace(attempts[0].candidate, kernel=Kernel("child", parent="b" * 64)),
    )
    assert f"| `{'b' * 12}` | tune |" in render_report(
        FinishedRun(RUN, result(child), [child]), plotted=False
    )
    assert "| max_autotune | failed | it broke |" in text
    assert (
        "### Round 1, kernel `aaaaaaaaaaaa`\n\nToo little in flight.\n\n- fill-the-grid: " in text
    )
    assert "not tried: the run ended before its turn. Offered because: treats latency" in text
    assert "- note: a note" in text
    assert "0.8 ms, limited by bytes" in text


def test_the_report_tells_final_verdicts_too() -> None:
    upheld, refused, screened = attempt(1, 1.0), attempt(2, 0.9), attempt(3, 3.0)
    log = "output 0 on family normal: relative error 1.3e-06 (allowed 1.0e-06); next: fuse at relu"
    verdicts = {
        upheld.candidate.kernel.hash: Verdict(upheld.measurement),
        refused.candidate.kernel.hash: Verdict(
            Measurement(Status.WRONG_VALUES, None, False, log=log)
        ),
    }
    attempts = [upheld, refused, screened]
    finished = FinishedRun(RUN, result(upheld), attempts, verdicts=verdicts)
    rows = [
        line for line in render_report(finished, plotted=False).splitlines() if "| tune |" in line
    ]
    assert "| verified | 1 |" in rows[0]
    assert "| passed, at the end wrong_values | 0.9 |" in rows[1] and log in rows[1]
    assert "| passed | 3 |" in rows[2]


def test_the_first_screen_is_the_verdict_how_it_is_used_and_what_comes_next() -> None:
    diagnosis = Diagnosis(
        Bottleneck.LATENCY, (), Signature({}), 0.4, 1.0, "Too little in flight.", None
    )
    offered = tuple(
        Prescription(skill, 1.0, ("treats latency",))
        for skill in ("fill-the-grid", "stream-k", "fuse")
    )
    best = attempt(1, 1.0)
    ended = replace(
        result(best), reason="the 3 minutes are used up", flags=("specialised", "abridged")
    )
    finished = FinishedRun(
        RUN,
        ended,
        [best],
        [
            RoundDiagnosis(number, best.candidate.kernel.hash, diagnosis, offered)
            for number in (1, 2)
        ],
        executable=Executable(
            frozenset({"fuse", "stream-k"}),
            frozenset({"fuse"}),
            {("fuse", "relu"): ("addmm", "relu")},
        ),
    )
    text = render_report(finished, plotted=False)
    first = text[: text.index("## The run")]
    assert len(first.splitlines()) < 40
    for said in (
        "**1 ms on h200, 2.00x compile (95% interval 1.90-2.10), 80% of the speed of light.**",
        "from best_kernel import ModelNew",
        "- `relu` (pointwise) by fuse: addmm, relu as one; BLOCK=16",
        f"- specialised: {FLAGS['specialised']}",
        f"- abridged: {FLAGS['abridged']}",
        "- Too little in flight.",
        "- the bound is 0.8 ms, set by bytes: 1.2x is left",
        "- the run stopped because the 3 minutes are used up",
        "- more time: `--minutes 6`",
        "for skills that no recipe writes: fill-the-grid",
    ):
        assert said in first, said
    assert "- all else stays with the library's operators" in first
    for computing, said in (
        (("addmm", "relu"), "- nothing is left to the library's operators"),
        (("addmm", "relu", "sort"), "- left to the library's operators: sort"),
    ):
        known = replace(finished.executable, computing=computing)
        assert said in render_report(replace(finished, executable=known), plotted=False)
    assert text.count("Too little in flight.") == 2, "in the first screen, and once below"
    assert "### Round 1, 2, kernel" in text
    assert "- fuse: tried, 1 attempt, the fastest 1 ms." in text
    assert "- stream-k: not tried: its recipe matches no part of this graph." in text
    assert "- fill-the-grid: not tried: no recipe writes it: it needs a language model" in text


def test_the_counts_of_a_report_add_up() -> None:
    broken = replace(
        attempt(3, None), measurement=Measurement(Status.BUILD_FAILED, None, False, log="no")
    )
    task = attempt(1, 1.0).candidate.task
    plans = [RoundPlan(0, Plan((replace(task, samples=6),), (), "six"))]
    finished = FinishedRun(
        RUN,
        replace(result(attempt(1, 1.0)), measurements=3),
        [attempt(1, 1.0), attempt(2, None), broken],
        plans=plans,
    )
    assert count_judged(finished) == (
        "2 candidates screened (1 passed, 1 refused) and 1 final verdict; 1 more did not compile; "
        "3 more planned and not judged: not written, the same as another, or the time was up"
    )


def test_knobs_of_several_sites_name_their_site() -> None:
    kernel = Kernel(
        "# two",
        choices=(
            SiteChoice("relu", "pointwise", "fuse", (("BLOCK", 16),)),
            SiteChoice("sum", "reduction", "reduce", (("BLOCK", 32),)),
        ),
    )
    one = attempt(1, 1.0)
    both = replace(one, candidate=replace(one.candidate, kernel=kernel))
    text = render_report(FinishedRun(RUN, result(both), [both]), plotted=False)
    assert "| `relu` BLOCK=16; `sum` BLOCK=32 |" in text


def test_the_plot_is_written_and_left_out_when_nothing_passed(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    write_report(directory, FinishedRun(RUN, result(attempt(1, 1.0)), [attempt(1, 1.0)]))
    assert (tmp_path / "run/convergence.png").read_bytes().startswith(b"\x89PNG")
    other = RunDirectory(tmp_path / "none")
    write_report(other, FinishedRun(RUN, result(None), [attempt(2, None)]))
    assert not (tmp_path / "none/convergence.png").exists()


def test_an_attempt_keeps_its_source_record_and_log(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.write_attempt(7, attempt(2, None))
    (folder,) = (tmp_path / "run/attempts").iterdir()
    assert folder.name.startswith("007-")
    assert (folder / "kernel.py").read_text() == "# kernel 2"
    assert "above 1e-6" in (folder / "log.txt").read_text()


def test_a_directory_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--out"):
        RunDirectory(tmp_path / "file/run")


def test_a_run_is_worked_on_by_one_process_and_a_kill_is_seen_and_kept(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\nfrom kmem.run.directory import RunDirectory\n"
        "from kmem.records import Run\nfrom kmem.serialize import from_json\n"
        f"run = from_json(Run, {to_json(RUN)!r})\n"
        "with RunDirectory(pathlib.Path(sys.argv[1])).work(run): "
    )
    directory = RunDirectory(tmp_path)
    with directory.work(RUN):
        assert is_worked_on(tmp_path)
        other = subprocess.run(
            [sys.executable, "-c", f"{code} pass", tmp_path], capture_output=True, text=True
        )
        assert "Another process is at work on" in other.stderr
    assert not is_worked_on(tmp_path)
    assert directory.kills() == []
    subprocess.run([sys.executable, "-c", f"{code} os.kill(os.getpid(), 9)", tmp_path])
    assert not is_worked_on(tmp_path)
    with directory.work(RUN):
        assert len(directory.kills()) == 1
    with contextlib.suppress(KeyboardInterrupt), directory.work(RUN):
        raise KeyboardInterrupt
    with directory.work(RUN):
        assert len(directory.kills()) == 1


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    other = replace(RUN, id="r2")
    first = RunDirectory(tmp_path / "run")
    with first.work(RUN):
        first.write_best(attempt(1, 1.0), "r1")
    with pytest.raises(OutputError, match="holds run r1, which would be overwritten"):
        RunDirectory(tmp_path / "run").work(other).__enter__()
    assert first.best_kernel.read_text() == "# kernel 1"
    with RunDirectory(tmp_path / "run").work(RUN):
        pass  # the same run goes on in it


def test_a_directory_whose_run_was_killed_before_its_first_result_is_free(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(to_json(replace(RUN, id="r2")))
    (tmp_path / "run.lock").write_text("at work\n")
    directory = RunDirectory(tmp_path)
    with directory.work(RUN):
        assert '"id": "r1"' in (tmp_path / "run.json").read_text()
    assert directory.kills() == [], "this run was not killed"


def test_results_of_nobody_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "best_kernel.py").write_text("mine")
    with pytest.raises(OutputError, match="has a best_kernel.py already"):
        RunDirectory(tmp_path).work(RUN).__enter__()
    assert [place.name for place in tmp_path.iterdir()] == ["best_kernel.py"]


def test_a_directory_with_other_files_is_taken(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text("mine")
    with RunDirectory(tmp_path).work(RUN):
        pass
    assert (tmp_path / "problem.py").read_text() == "mine"


def test_work_leaves_no_lock_and_no_scratch(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with directory.work(RUN):
        (directory.scratch / "workers-1").mkdir(parents=True)
        directory.write_experience("r1", [])
    assert sorted(place.name for place in directory.root.iterdir()) == [
        "experience-r1.json",
        "run.json",
    ]
    assert directory.read_experience("r1") == ()
    assert all(place.stat().st_size for place in directory.root.iterdir())


def test_a_run_that_never_began_leaves_nothing_it_made(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "runs" / "run")
    with directory.work(RUN):
        pass
    directory.abandon(RUN)
    assert list(tmp_path.iterdir()) == []


def test_abandoning_leaves_the_directory_of_another_run_alone(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "run")
    with first.work(RUN):
        pass
    RunDirectory(tmp_path / "run").abandon(replace(RUN, id="r2"))
    assert (tmp_path / "run" / "run.json").exists()


def test_kmem_out_is_a_root_under_which_each_run_has_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_run_directory("p-r1") == Path("runs/p-r1")
    monkeypatch.setenv("KMEM_OUT", str(tmp_path))
    assert default_run_directory("p-r1") == tmp_path / "p-r1"


def test_a_provisional_kernel_says_so_with_its_figure_and_gives_way(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    best = attempt(1, 1.0, estimated=True)
    text = directory.write_provisional(
        best, Baseline("eager", Timing(2.0, 2.0, 2.0, 0), estimated=True)
    ).read_text()
    assert text.startswith("# PROVISIONAL, NOT VERIFIED")
    assert "1 ms (estimated), eager 2 ms" in text
    assert text.endswith("# kernel 1")
    directory.remove_best()
    assert not directory.best_kernel.exists()
