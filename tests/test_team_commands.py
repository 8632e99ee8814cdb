"""Two people and one repository, by the commands they type.

What is published, merged and retracted, and what they are told when it fails.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from test_distill import a_win
from test_memory_store import make_outcome

from kmem.cli.memory.memory import memory as memory_group
from kmem.cli.skills.skills import skills as skills_group
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory
from kmem.plugins import build_plugin_manager, collect

Command = Callable[..., Result]
#: A skill without a recipe, to take for one of a user's.
SKILL = Path(__file__).parent.parent / "skills" / "cached-launch"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    path = tmp_path / "team.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(path)], check=True)
    return path


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Command]:
    """A way to type commands as somebody with a memory of their own.

    Plugins are collected anew for each command, as each process does.
    """
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")

    def commands_of(name: str) -> Command:
        def type_command(group: object, *arguments: object) -> Result:
            monkeypatch.setenv("KMEM_DB", str(tmp_path / name / "kmem.db"))
            return CliRunner().invoke(
                group,
                [str(argument) for argument in arguments],
                obj=collect(build_plugin_manager()),
            )

        return type_command

    return commands_of


def test_a_draft_its_reproductions_and_its_retraction_reach_a_colleague(
    person, remote: Path, tmp_path: Path
) -> None:
    ann, bob = person("ann"), person("bob")
    with Memory(tmp_path / "ann" / "kmem.db") as memory:
        a_win(memory)
    distilled = ann(skills_group, "distill", "--all", "--out", tmp_path / "shared" / "skills")
    name = Path(distilled.stdout.strip()).name
    assert "draft: reproduced on 0 of at least 2" in " ".join(
        ann(skills_group, "show", name).stdout.lower().split()
    )
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "drafts"]):
        subprocess.run([*git, *command], cwd=tmp_path / "shared", check=True)
    added = bob(skills_group, "add", f"file://{tmp_path / 'shared'}#skills/{name}")
    assert Path(added.stdout.strip()) == tmp_path / "bob" / "skills" / name
    with Memory(tmp_path / "bob" / "kmem.db") as memory:
        for graph, seed in (("graph-1", 0), ("graph-2", 1)):
            memory.ledger.record(
                make_outcome(
                    1.0,
                    graph=graph,
                    skill=name,
                    parent_ms=2.0,
                    seed=seed,
                    origin=memory.contributors.own_name,
                )
            )
    assert f"{name} verified" in " ".join(bob(skills_group, "list").stdout.split())
    assert "published 2 records as kmem-" in bob(memory_group, "sync", remote).stderr
    assert (
        "Merged 2 outcomes and 0 retractions of 1 new segment;"
        in ann(memory_group, "sync", remote).stderr
    )
    assert "verified: reproduced on 2 of at least 2 problems" in " ".join(
        ann(skills_group, "show", name).stdout.lower().split()
    )
    ann(skills_group, "retract", name, "--reason", "wrong on odd sizes")
    ann(memory_group, "sync", remote)
    bob(memory_group, "sync", remote)
    assert "Retracted: wrong on odd sizes." in bob(skills_group, "show", name).stdout


def test_a_sync_with_nothing_new_says_so(person, remote: Path) -> None:
    said = person("ann")(memory_group, "sync", remote).stderr
    assert "published nothing: there was nothing new of its own" in said


def test_what_git_says_is_wrong_is_what_is_told(person, tmp_path: Path) -> None:
    failed = person("ann")(memory_group, "sync", tmp_path / "nothing.git")
    assert isinstance(failed.exception, MemoryStoreError)
    assert "does not appear to be a git repository); check the remote's address" in str(
        failed.exception
    )


def test_an_export_given_to_merge_is_sent_to_import(person, tmp_path: Path) -> None:
    ann = person("ann")
    (tmp_path / "all.jsonl").write_text('{"licences": {"ann": "CC0-1.0"}}\n')
    failed = ann(memory_group, "merge", tmp_path / "all.jsonl")
    assert str(failed.exception) == (
        f"File {tmp_path / 'all.jsonl'} is no database; `kmem memory import` takes what `kmem "
        f"memory export` wrote"
    )


def test_trust_lists_this_memory_and_those_whose_outcomes_are_here(person) -> None:
    lines = person("ann")(memory_group, "trust").stdout.splitlines()
    assert len(lines) == 1
    assert "(this memory): trust 1, 0 outcomes, licence not stated" in lines[0]


def test_a_name_goes_along_and_is_whom_colleagues_trust(person, remote: Path) -> None:
    ann, bob = person("ann"), person("bob")
    assert ann(memory_group, "name").stdout == "no name yet: kmem memory name NAME\n"
    assert ann(memory_group, "name", "Ann  Lee").stdout == "Ann Lee\n"
    with Memory() as memory:
        memory.ledger.record(make_outcome(origin=memory.contributors.own_name))
    ann(memory_group, "sync", remote)
    bob(memory_group, "sync", remote)
    shown = bob(memory_group, "trust").stdout
    assert "Ann Lee (kmem-" in shown
    assert "Ann Lee (kmem-" in bob(memory_group, "trust", "Ann Lee", "0.8").stdout
    assert "trust 0.8, 1 outcome" in bob(memory_group, "trust").stdout
    listed = bob(memory_group, "trust").stdout
    mistyped = bob(memory_group, "trust", "Anne", "0.5")
    assert "Nobody here is called 'Anne'" in str(mistyped.exception)
    assert bob(memory_group, "trust").stdout == listed, "a typing error adds nobody"
    authors = subprocess.run(
        ["git", "log", "--format=%an", "kmem-memory"], cwd=remote, capture_output=True, text=True
    ).stdout
    assert authors == "Ann Lee\n"


@pytest.mark.parametrize(("words", "names"), [((), ["Git User"]), (("--redact",), [])])
def test_gits_name_is_published_but_not_with_a_redacted_publication(
    words: tuple[str, ...], names: list[str], person, remote: Path
) -> None:
    subprocess.run(["git", "config", "--global", "user.name", "Git User"], check=True)
    ann = person("ann")
    ann(memory_group, "trust")  # sets the database that `Memory()` opens
    with Memory() as memory:
        memory.ledger.record(make_outcome(origin=memory.contributors.own_name))
    ann(memory_group, "sync", remote, *words)
    person("bob")(memory_group, "sync", remote)
    with Memory() as memory:
        assert list(memory.contributors.names().values()) == names


def test_the_remote_and_what_goes_along_are_remembered(person, remote: Path) -> None:
    ann = person("ann")
    refused = ann(memory_group, "sync")
    assert refused.exit_code == 2
    assert "kmem memory sync REMOTE" in refused.stderr
    ann(memory_group, "sync", remote, "--redact")
    with Memory() as memory:
        memory.ledger.record(make_outcome(origin=memory.contributors.own_name))
    assert "published 1 record as" in ann(memory_group, "sync").stderr
    person("bob")(memory_group, "sync", remote)
    with Memory() as memory:
        assert [entry.problem for entry in memory.ledger.outcomes()] == ["redacted"]


def test_what_was_imported_is_published_on_only_if_asked(person, remote: Path) -> None:
    ann, bob = person("ann"), person("bob")
    ann(memory_group, "trust")
    with Memory() as memory:
        memory.ledger.record(make_outcome(origin="somebody"))
        memory.contributors.set_licence("somebody", "CC0-1.0")
    assert "published nothing" in ann(memory_group, "sync", remote).stderr
    assert "published 1 record as" in ann(memory_group, "sync", "--imported").stderr
    assert "published nothing" in ann(memory_group, "sync").stderr
    bob(memory_group, "sync", remote)
    assert "somebody: trust 0.5, 1 outcome" in bob(memory_group, "trust").stdout
    assert "licence CC0-1.0" in bob(memory_group, "trust").stdout
    assert "published nothing" in bob(memory_group, "sync", "--imported").stderr, "it is there"


def make_skill(home: Path) -> Path:
    """A skill without a recipe beside somebody's database, as `skills new` and `distill` leave."""
    own = home / "skills" / "relu-fast"
    shutil.copytree(SKILL, own)
    text = (SKILL / "SKILL.md").read_text()
    (own / "SKILL.md").write_text(text.replace("name: cached-launch", "name: relu-fast"))
    return own


def test_skills_travel_and_their_code_only_where_it_is_trusted(
    person, remote: Path, tmp_path: Path
) -> None:
    ann, bob, eve = person("ann"), person("bob"), person("eve")
    own = make_skill(tmp_path / "ann")
    (own / "recipe.py").write_text("raise SystemExit('its code ran')\n")
    assert "Published 1 skill\n" in ann(memory_group, "sync", remote).stderr
    said = bob(memory_group, "sync", remote).stderr
    assert "Added 1 skill: relu-fast" in said
    assert "Left out the code of relu-fast" in said
    assert (tmp_path / "bob" / "skills" / "relu-fast" / "SKILL.md").is_file()
    assert not (tmp_path / "bob" / "skills" / "relu-fast" / "recipe.py").exists()
    assert "skill" not in bob(memory_group, "sync").stderr, "nothing is sent back or taken again"
    assert "Added" not in eve(memory_group, "sync", remote, "--no-skills").stderr
    assert not (tmp_path / "eve" / "skills").exists()


def test_no_skill_leaves_with_a_redacted_publication(person, remote: Path, tmp_path: Path) -> None:
    make_skill(tmp_path / "ann")
    assert "Published" not in person("ann")(memory_group, "sync", remote, "--redact").stderr
