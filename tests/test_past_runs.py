"""Past runs: listed by state, problem and date, set side by side, compared by text, and removed."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_memory_store import RUN, make_attempt, make_outcome

from kmem.cli.options.run_name import RUN_NAME
from kmem.cli.runs.report import report
from kmem.cli.runs.runs import runs
from kmem.cli.runs.why import why
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.records import Problem, Run, RunState
from kmem.run.directory import RunDirectory


def kmem(*words: str) -> Result:
    return CliRunner().invoke(runs, list(words), catch_exceptions=False)


def ids(*words: str) -> list[str]:
    return [run["run"] for run in json.loads(kmem("list", "--json", *words).stdout)["runs"]]


@pytest.fixture
def past(tmp_path: Path) -> dict[str, Run]:
    """Three runs with directories: of yesterday and failed, of today, and of January, killed."""
    now = datetime.now(UTC)
    made = {
        "failed": replace(
            RUN, id="r-failed", created_at=(now - timedelta(days=1, hours=1)).isoformat()
        ),
        "done": replace(
            RUN,
            id="r-done",
            problem=Problem("conv_relu", "/c.py", "x = 1\n"),
            created_at=now.isoformat(),
        ),
        "killed": replace(RUN, id="r-killed"),
    }
    with Memory() as memory:
        for name, run in made.items():
            made[name] = replace(run, out_dir=str(tmp_path / name))
            with RunDirectory(tmp_path / name).work(made[name]):
                (tmp_path / name / "report.md").write_text(name)
            memory.runs.start(made[name])
        memory.runs.set_state("r-failed", RunState.FAILED, failure="the disk\nis full")
        memory.runs.set_state("r-done", RunState.FINISHED)
        memory.runs.record_attempt("r-done", make_attempt("x = 1\ny = 2\n"))
        memory.ledger.record(make_outcome())
    return made


def test_runs_are_listed_by_state_problem_and_date(past: dict[str, Run]) -> None:
    assert ids() == ["r-done", "r-failed", "r-killed"]
    assert ids("--state", "killed") == ["r-killed"]
    assert ids("--problem", "conv*") == ["r-done"]
    assert ids("--since", "12h") == ["r-done"]
    assert ids("--since", "2d") == ["r-done", "r-failed"]
    assert ids("--since", "2026-01-02") == ["r-done", "r-failed"]
    assert kmem("list", "--since", "soon").exit_code == 2
    assert "None of 3 runs is so" in kmem("list", "--problem", "zzz").stderr


def test_a_line_has_the_date_and_why_it_failed(past: dict[str, Run]) -> None:
    (line,) = kmem("list", "--state", "failed").stdout.splitlines()
    assert past["failed"].created_at[:16].replace("T", " ") in line
    assert line.endswith("the disk is full")


def test_no_runs_is_said() -> None:
    assert "No runs yet" in kmem("list").stderr


def test_runs_stand_side_by_side_with_what_each_skill_reached(past: dict[str, Run]) -> None:
    lines = [line.split("│") for line in kmem("compare", "r-d", "r-f").stdout.splitlines()]
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    assert rows["problem"] == ["conv_relu", "p"]
    assert rows["state"] == ["finished", "failed"]
    assert rows["reduce"] == ["1 ms", ""]
    data = json.loads(kmem("compare", "r-d", "r-f", "--json").stdout)["runs"]
    assert [run["best_ms"] for run in data] == [{"reduce": 1.0}, {}]
    assert kmem("compare", "r-d").exit_code == 2


def test_what_an_attempt_changed_is_a_diff_against_what_it_was_made_from(
    past: dict[str, Run],
) -> None:
    for words in (["r-done"], ["r-done", "1"]):
        assert kmem("diff", *words).stdout.splitlines()[-2:] == [" x = 1", "+y = 2"]
    assert kmem("diff", "r-done", "--with", "r-done").stdout == ""
    for words, said in ((["r-done", "7"], "has 1 attempts, not 7"), (["r-f"], "No kernel of run")):
        result = CliRunner().invoke(runs, ["diff", *words])
        assert said in str(result.exception)


def test_pruning_lists_first_and_removes_only_when_told(
    past: dict[str, Run], tmp_path: Path
) -> None:
    assert kmem("prune").exit_code == 2
    assert "1 runs would be removed" in kmem("prune", "--state", "failed").stderr
    assert (tmp_path / "failed" / "report.md").exists()
    assert len(ids()) == 3
    kmem("prune", "--before", "12h", "--yes")
    assert ids() == ["r-done"]
    assert [place.name for place in tmp_path.iterdir()] == ["done"]
    kmem("prune", "--problem", "conv*", "--yes")
    with Memory() as memory:
        assert memory.run_entries.all() == []
        assert len(memory.ledger.outcomes()) == 1, "what was measured stays"


def test_pruning_leaves_directories_of_others_and_runs_at_work(
    past: dict[str, Run], tmp_path: Path
) -> None:
    (tmp_path / "failed" / "run.json").write_text('{"id": "another"}')
    with RunDirectory(tmp_path / "killed").work(past["killed"]):
        kmem("prune", "--before", "12h", "--yes")
        assert ids() == ["r-done", "r-killed"]
    assert (tmp_path / "failed" / "report.md").read_text() == "failed"
    assert (tmp_path / "killed" / "report.md").exists()


@pytest.mark.parametrize("command", ["show", "diff"])
def test_a_run_may_be_named_by_its_directory(command: str, past: dict[str, Run]) -> None:
    named, plain = (kmem(command, word) for word in (past["done"].out_dir, "r-done"))
    assert named.exit_code == plain.exit_code == 0 and named.stdout == plain.stdout != ""
    with pytest.raises(MemoryStoreError, match="No run '/nobody'"):
        kmem(command, "/nobody")


@pytest.mark.parametrize("command", ["show", "diff"])
def test_a_problems_name_is_its_latest_run_and_that_is_said(
    command: str, past: dict[str, Run]
) -> None:
    named, plain = (kmem(command, word) for word in ("conv_relu", "r-done"))
    assert named.exit_code == plain.exit_code == 0 and named.stdout == plain.stdout != ""
    assert named.stderr == "conv_relu is a problem: taking its only run, r-done\n"
    assert plain.stderr == ""


def test_of_several_runs_of_a_problem_the_latest_is_taken(past: dict[str, Run]) -> None:
    for command, words in ((report, ()), (why, ("--json",))):
        taken = CliRunner().invoke(command, [RUN.problem.name, *words])
        assert "taking the latest of its 2 runs, r-failed" in taken.stderr
        assert "failed" in taken.stdout


def test_a_word_that_an_id_begins_with_is_no_problems_name(past: dict[str, Run]) -> None:
    with Memory() as memory:
        memory.runs.start(replace(RUN, id="other", problem=Problem("r-done", "/r.py", "x = 1\n")))
    assert kmem("show", "r-done").stdout.startswith("r-done ")


def test_the_directory_of_several_runs_is_no_problems_name(
    past: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conv_relu").mkdir()
    (tmp_path / "conv_relu" / "model.json").write_text("{}")
    assert RUN_NAME.convert("conv_relu", None, None) == "conv_relu"
