"""`kmem skills`: what people and programs see."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from test_memory_library import make_skill
from test_memory_store import make_outcome
from test_skills import filled_template, write_skill

from kmem.cli.group import LazyCommand
from kmem.cli.skills.skills import skills
from kmem.errors import KmemError, NotRegistered, OutputError, SkillError
from kmem.memory.store import Memory
from kmem.records import Bottleneck, Diagnosis, Signature
from kmem.vocabulary import OPERATORS, SIGNATURE_METRICS

pytestmark = pytest.mark.usefixtures("shared_template")


@pytest.fixture(autouse=True)
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")


RELU_OF_A_SUM = """
import torch

ROWS = 512

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + 1)

def get_inputs():
    return [torch.randn(ROWS, 1024)]
"""


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
    assert [line.split()[:4] for line in result.stdout.splitlines()] == [
        ["coalesce-loads", "plugin", "Adjacent", "lanes"],
        ["separable-pooling", "plugin", "Split", "a"],
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
            "compared": 1,
            "improved": 1,
            "speedup": pytest.approx(2.0),
            "recalled": 0,
            "held": 0,
            "refuted": 0,
        }
    ]


def test_show_of_an_unknown_skill_names_the_remedy(registry: SimpleNamespace) -> None:
    result = invoke(registry, "show", "nothing")
    assert isinstance(result.exception, NotRegistered)
    assert str(result.exception) == "No skill named 'nothing'; `kmem skills list` shows all 2"


def test_search_prints_hits_with_reasons(registry: SimpleNamespace) -> None:
    (hit,) = json.loads(invoke(registry, "search", "adjacent lanes", "--json").stdout)["skills"]
    assert hit["name"] == "coalesce-loads"
    assert hit["description"].startswith("Adjacent lanes load adjacent words.")
    assert (hit["status"], hit["acts"]) == ("plugin", "prose for a model")
    assert hit["reasons"] == [
        "found by words alone: no embeddings (KMEM_EMBEDDING_MODEL=none)",
        "number 1 by the words of its text",
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
    first, *rest = invoke(registry, "search", "adjacent lanes").stdout.splitlines()
    assert first == " 1. coalesce-loads (plugin; prose for a model)"
    assert rest[0].startswith("    Adjacent lanes load adjacent words.")
    assert any(line.startswith("    Why: found by words alone") for line in rest)
    filtered = json.loads(
        invoke(registry, "search", "helps", "--op", "max_pool", "--arch", "sm_75", "--json").stdout
    )
    assert [hit["name"] for hit in filtered["skills"]] == ["coalesce-loads"]
    nothing = invoke(registry, "search", "zebra")
    assert (nothing.stdout, "No skill is about 'zebra'" in nothing.stderr) == ("", True)
    assert json.loads(invoke(registry, "search", "zebra", "--json").stdout) == {
        "diagnosis": None,
        "fits": False,
        "skills": [],
    }


def test_search_by_a_report_ranks_by_its_bottleneck(
    registry: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def diagnose_report(path: Path) -> Diagnosis:
        asked.append(path)
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
    assert asked == [tmp_path / "report.csv"]
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


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--op", "max_pool"], ["coalesce-loads", "separable-pooling"]),
        (["--op", "softmax"], ["coalesce-loads"]),
        (["--bottleneck", "uncoalesced"], ["coalesce-loads"]),
        (["--bottleneck", "redundant_traffic"], ["separable-pooling"]),
        (["--has-recipe"], []),
    ],
)
def test_a_list_can_be_narrowed(
    registry: SimpleNamespace, arguments: list[str], names: list[str]
) -> None:
    listed = json.loads(invoke(registry, "list", *arguments, "--json").stdout)["skills"]
    assert [skill["name"] for skill in listed] == names


def test_new_then_validate_then_add_then_remove(
    registry: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "data" / "kmem.db"))
    made = Path(invoke(registry, "new", "my-skill", "--dir", tmp_path / "work").stdout.strip())
    assert made == tmp_path / "work" / "my-skill"
    assert isinstance(
        invoke(registry, "new", "my-skill", "--dir", tmp_path / "work").exception, OutputError
    )
    for command in ("validate", "add"):
        refused = invoke(registry, command, made)
        assert isinstance(refused.exception, SkillError)
        assert "description is still the template's" in refused.output + str(refused.exception)
    (made / "SKILL.md").write_text(filled_template("my-skill"))
    checked = invoke(registry, "validate", tmp_path / "work")
    assert (checked.exit_code, checked.stdout) == (0, "")
    assert "1 skill, no faults" in checked.stderr
    assert "Near-duplicates not checked" in checked.stderr
    added = Path(invoke(registry, "add", made).stdout.strip())
    assert added == tmp_path / "data" / "skills" / "my-skill"

    registry.skills["my-skill"] = added
    assert "is not one that you added" in str(
        invoke(registry, "remove", "coalesce-loads").exception
    )
    assert "is not known" in str(invoke(registry, "remove", "nobody").exception)
    for place in ("../../work/my-skill", "..", ".", ".origins", ""):
        assert isinstance(invoke(registry, "remove", place).exception, NotRegistered)
    assert made.is_dir()
    assert invoke(registry, "remove", "my-skill").exit_code == 0
    assert not added.exists()


def test_a_retracted_skill_that_is_added_again_stays_retracted_and_that_is_said(
    registry: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "data" / "kmem.db"))
    made = write_skill(tmp_path, "my-skill")
    registry.skills["my-skill"] = Path(invoke(registry, "add", made).stdout.strip())
    done = invoke(registry, "retract", "my-skill", "--reason", "it is slower")
    assert "my-skill is retracted: it is slower" in done.stderr
    again = invoke(registry, "add", made)
    assert again.exit_code == 0
    assert "my-skill stays retracted (it is slower)" in again.stderr


def test_the_vocabulary_has_a_line_for_every_word(registry: SimpleNamespace) -> None:
    words = json.loads(invoke(registry, "vocabulary", "--json").stdout)
    assert set(words["kmem-ops"]) == {"any", *OPERATORS}
    assert set(words["kmem-signature, kmem-claims"]) == set(SIGNATURE_METRICS)
    known = {each.value for each in Bottleneck} - {Bottleneck.UNKNOWN.value}
    assert set(words["kmem-bottlenecks"]) == known
    assert all(meaning for table in words.values() for meaning in table.values())
    assert "relu" in invoke(registry, "vocabulary").stdout


@pytest.mark.slow
def test_the_template_with_a_recipe_can_be_tried_as_it_is(
    registry: SimpleNamespace, tmp_path: Path
) -> None:
    made = Path(
        invoke(registry, "new", "my-relu", "--recipe", "--dir", tmp_path / "work").stdout.strip()
    )
    (made / "SKILL.md").write_text(filled_template("my-relu"))
    problem = tmp_path / "p.py"
    problem.write_text(RELU_OF_A_SUM)
    tried = invoke(registry, "try", made, problem)
    assert tried.exit_code == 0, tried.output
    assert "aten.relu.default" in tried.stdout
    assert "def my_relu_kernel(source, result" in tried.stdout
    assert "checked in the Triton interpreter, at small sizes: passed" in tried.stdout

    recipe = made / "recipe.py"
    recipe.write_text(recipe.read_text().replace("tl.where(x < 0, 0.0, x)", "x * 1.01"))
    wrong = invoke(registry, "try", made, problem)
    assert wrong.exit_code == 1
    assert "at small sizes: wrong_values" in wrong.stdout
    recipe.write_text(recipe.read_text().replace("aten.relu", "aten.gelu"))
    nothing = invoke(registry, "try", made, problem)
    assert nothing.exit_code == 1
    assert "matches no part of p" in nothing.stderr
    stranger = tmp_path / "elsewhere" / "my-relu"
    shutil.copytree(made, stranger)
    assert "was not made here and was not run" in str(
        invoke(registry, "try", stranger, problem).exception
    )
    prose = invoke(registry, "try", "coalesce-loads", problem)
    assert "has no recipe.py" in str(prose.exception)


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
    from kmem.cli.memory.db import db
    from kmem.cli.memory.memory import memory

    for group in (skills, db, memory):
        for listed in (group, *group.commands.values()):
            command = listed.load() if isinstance(listed, LazyCommand) else listed
            assert command.help, command.name
            assert all(
                option.help for option in command.params if isinstance(option, click.Option)
            ), command.name
