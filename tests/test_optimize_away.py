"""`kmem optimize --executor`: what goes along, what is refused, and a run on a worker."""

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from test_away import silu
from test_memory_store import RUN

from kmem.away.errand import _PLACE
from kmem.cli.making.optimize import optimize
from kmem.cli.options.words import words_of
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect
from kmem.run.directory import RunDirectory


def kmem(*words: str) -> Result:
    registry = collect(build_plugin_manager())
    return CliRunner().invoke(optimize, list(words), obj=registry)


def test_options_are_words_again_those_of_the_environment_too_and_defaults_not() -> None:
    found: list[list[str]] = []

    @click.command()
    @click.option("--rounds", type=int, default=4)
    @click.option("--name", envvar="NAME_IN_TEST")
    @click.option("--only", multiple=True)
    @click.option("--fast/--slow", default=False)
    @click.option("--among", callback=lambda context, option, text: tuple(text.split(",")))
    @click.option("--json", "as_json", is_flag=True)
    @click.option("--out")
    @click.pass_context
    def command(context: click.Context, **values: object) -> None:
        found.append(words_of(context, {"out", "as_json"}))

    words = ["--only", "a", "--only", "b c", "--slow", "--json", "--out", "x", "--among", "p,q"]
    done = CliRunner().invoke(command, words, env={"NAME_IN_TEST": "n"})
    assert done.exit_code == 0, done.output
    assert found == [["--name", "n", "--only", "a", "--only", "b c", "--slow", "--among", "p,q"]]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--author", "both"], "language models"),
        (["--shapes", "ROWS=4,8"], "--shapes"),
        (["--ui"], "--ui"),
    ],
)
def test_what_would_have_to_leave_this_machine_is_refused(
    tmp_path: Path, words: list[str], what: str
) -> None:
    done = kmem(silu(tmp_path).path, "--executor", "ray", *words)
    assert done.exit_code == 2 and f"{what} does not go with --executor ray" in done.stderr


def test_a_directory_of_the_users_is_not_emptied(tmp_path: Path) -> None:
    problem = silu(tmp_path).path
    words = ["--executor", "slurm", "--address", "local", "--target", "h200"]
    done = kmem(problem, *words, "--out", str(tmp_path))
    assert "choose another directory with --out" in str(done.exception)
    assert Path(problem).is_file()


def test_the_directory_of_a_run_on_another_problem_is_not_taken_for_this_ones(
    tmp_path: Path,
) -> None:
    problem, out = silu(tmp_path).path, tmp_path / "out"
    other = replace(RUN, out_dir=str(out))
    with Memory() as memory:
        memory.runs.start(other)
    out.mkdir()
    RunDirectory(out).own(other)
    (out / _PLACE).write_text("[]")
    words = ["--executor", "slurm", "--address", "local", "--target", "h200"]
    done = kmem(problem, *words, "--out", str(out))
    assert f"run {RUN.id} on another problem" in str(done.exception)


def test_an_executor_that_nobody_registered_is_named_with_those_there_are(tmp_path: Path) -> None:
    done = kmem(silu(tmp_path).path, "--executor", "cloud")
    assert str(done.exception) == "No executor named 'cloud'. Registered: local, ray, slurm"


@pytest.mark.slow
def test_a_run_by_submitit_on_this_machine_comes_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "kmem.db"))
    out = tmp_path / "out"
    where = ["--executor", "slurm", "--address", "local", "--out", str(out), "--json"]
    how = ["--target", "h200", "--rounds", "0", "--candidates", "2", "--baselines", "eager"]
    done = kmem(silu(tmp_path).path, *where, *how)
    assert done.exit_code in (0, 3), done.stderr
    printed = json.loads(done.stdout.strip().splitlines()[-1])
    assert printed["report"] == str(out / "report.md") and (out / "report.md").is_file()
    with Memory() as memory:
        (entry,) = memory.run_entries.all()
        assert entry.run.out_dir == str(out)
