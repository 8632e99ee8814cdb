"""`kmem skills`: what people and programs see."""

import json
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from test_memory_library import make_skill
from test_memory_store import make_outcome
from test_skills import write_skill

from kmem.cli.skills import skills
from kmem.errors import KmemError, NotRegistered, OutputError, SkillError
from kmem.memory.store import Memory
from kmem.records import Bottleneck, Diagnosis, Signature


@pytest.fixture(autouse=True)
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


@pytest.fixture
def registry(tmp_path: Path) -> SimpleNamespace:
    root = tmp_path / "plugin"
    made = [
        make_skill(
            root, "separable-pooling", "Split a pool in two passes.", ops="max_pool", arch="sm_80+"
        ),
        make_skill(
            root, "coalesce-loads", "Adjacent lanes load adjacent words.", bottlenecks="uncoalesced"
        ),
    ]
    return SimpleNamespace(skills={skill.name: skill.path for skill in made})


def invoke(registry: SimpleNamespace, *arguments: str | Path):
    result = CliRunner().invoke(skills, [str(argument) for argument in arguments], obj=registry)
    if result.exception is not None and not isinstance(result.exception, SystemExit | KmemError):
        raise result.exception
    return result


def test_list_is_the_default_and_shows_every_skill(registry: SimpleNamespace) -> None:
    result = invoke(registry)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "skill",
        "coalesce-loads",
        "separable-pooling",
    ]
    listed = json.loads(invoke(registry, "list", "--json").stdout)["skills"]
    assert [(skill["name"], skill["operators"], skill["recipe"]) for skill in listed] == [
        ("coalesce-loads", ["any"], False),
        ("separable-pooling", ["max_pool"], False),
    ]


def test_show_renders_the_text_and_the_track_record(registry: SimpleNamespace) -> None:
    assert "Never measured in this memory." in invoke(registry, "show", "coalesce-loads").stdout
    with Memory() as memory:
        memory.ledger.record(make_outcome(1.0, skill="coalesce-loads"))
    shown = invoke(registry, "show", "coalesce-loads").stdout
    assert "Adjacent lanes load adjacent words." in shown
    assert "sm_90" in shown
    assert "2.00x" in shown
    record = json.loads(invoke(registry, "show", "coalesce-loads", "--json").stdout)["record"]
    assert record == [
        {
            "arch": "sm_90",
            "tried": 1,
            "passed": 1,
            "improved": 1,
            "speedup": pytest.approx(2.0),
            "recalled": 0,
        }
    ]


def test_show_of_an_unknown_skill_names_the_remedy(registry: SimpleNamespace) -> None:
    result = invoke(registry, "show", "nothing")
    assert isinstance(result.exception, NotRegistered)
    assert str(result.exception) == "No skill named 'nothing'; `kmem skills list` shows all 2"


def test_search_prints_hits_with_reasons(registry: SimpleNamespace) -> None:
    (hit,) = json.loads(invoke(registry, "search", "adjacent lanes", "--json").stdout)["skills"]
    assert hit["name"] == "coalesce-loads"
    assert hit["reasons"] == [
        "full text only: no embeddings (KMEM_EMBEDDING_MODEL=none)",
        "full-text rank 1",
        "never tried: 25% to improve, as skills do on average",
    ]
    with Memory() as memory:
        memory.ledger.record(make_outcome(1.0, skill="coalesce-loads", operators=("max_pool",)))
    (hit,) = json.loads(
        invoke(
            registry, "search", "adjacent lanes", "--op", "max_pool", "--arch", "sm_90", "--json"
        ).stdout
    )["skills"]
    assert hit["reasons"][-1].startswith("1 tried, 1 of them on this very case: 56% correct")
    assert "coalesce-loads" in invoke(registry, "search", "adjacent lanes").stdout
    filtered = json.loads(
        invoke(registry, "search", "helps", "--op", "max_pool", "--arch", "sm_75", "--json").stdout
    )
    assert [hit["name"] for hit in filtered["skills"]] == ["coalesce-loads"]
    nothing = invoke(registry, "search", "zebra")
    assert (nothing.stdout, "No skill fits" in nothing.stderr) == ("", True)


def test_search_by_a_report_ranks_by_its_bottleneck(
    registry: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def diagnose_report(path: Path, problem: str | None) -> Diagnosis:
        asked.append((path, problem))
        return Diagnosis(
            Bottleneck.UNCOALESCED,
            (),
            Signature({"traffic_ratio": 4.0}),
            None,
            None,
            "loads are scattered",
            "kernel_0",
        )

    monkeypatch.setattr("kmem.cli.actions.stages.diagnose_report", diagnose_report)
    found = json.loads(
        invoke(registry, "search", "--ncu", tmp_path / "report.csv", "--json").stdout
    )
    assert asked == [(tmp_path / "report.csv", None)]
    assert found["diagnosis"]["bottleneck"] == "uncoalesced"
    assert found["skills"][0]["name"] == "coalesce-loads"
    assert found["skills"][0]["reasons"][:2] == [
        "addresses uncoalesced",
        "traffic_ratio >= 1.3 (measured 4)",
    ]
    assert invoke(registry, "search", "--ncu", tmp_path / "report.csv").stdout.startswith(
        "loads are scattered\n"
    )


@pytest.mark.parametrize(
    "arguments", [["search"], ["search", "x", "--op", "polling"], ["search", "x", "--limit", "0"]]
)
def test_a_search_that_makes_no_sense_is_a_usage_error(
    registry: SimpleNamespace, arguments: list[str]
) -> None:
    assert invoke(registry, *arguments).exit_code == 2


def test_new_then_add_then_validate(
    registry: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "data" / "kmem.db"))
    made = invoke(registry, "new", "my-skill", "--dir", tmp_path / "work")
    assert made.stdout.strip() == str(tmp_path / "work" / "my-skill")
    assert isinstance(
        invoke(registry, "new", "my-skill", "--dir", tmp_path / "work").exception, OutputError
    )
    added = invoke(registry, "add", made.stdout.strip())
    assert added.stdout.strip() == str(tmp_path / "data" / "skills" / "my-skill")
    checked = invoke(registry, "validate", tmp_path / "work")
    assert (checked.exit_code, checked.stdout) == (0, "")
    assert "1 skill, no faults" in checked.stderr
    assert "Near-duplicates not checked" in checked.stderr


def test_validate_prints_every_fault_of_every_skill(
    registry: SimpleNamespace, tmp_path: Path
) -> None:
    registry.skills["vague"] = write_skill(
        tmp_path,
        "vague",
        change=lambda text: text.replace("Use when", "If").replace("any", "polling"),
    )
    registry.skills["broken"] = write_skill(tmp_path, "broken", recipe="1 / 0")
    registry.skills["alone"] = write_skill(
        tmp_path,
        "alone",
        change=lambda text: text.replace("exact", "exact\n  kmem-conflicts: nobody"),
    )
    result = invoke(registry, "validate", "--no-embed")
    assert isinstance(result.exception, SkillError)
    faults = result.stdout.splitlines()
    assert [fault.split(":")[0] for fault in faults] == [
        "vague",
        "vague",
        "vague",
        "broken",
        "alone",
    ]
    assert str(result.exception).startswith("5 faults in 5 skills")
    one = invoke(registry, "validate", registry.skills["alone"])
    assert one.stdout == "alone: kmem-conflicts 'nobody' is not a skill\n"
    assert "no SKILL.md" in invoke(registry, "validate", tmp_path / "missing").stdout


def test_every_command_and_option_has_help() -> None:
    from kmem.cli.db import db
    from kmem.cli.memory import memory

    for group in (skills, db, memory):
        for command in (group, *group.commands.values()):
            assert command.help, command.name
            assert all(
                option.help for option in command.params if isinstance(option, click.Option)
            ), command.name
