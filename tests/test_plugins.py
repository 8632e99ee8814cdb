"""A broken plugin or skill is one warning and is left out; every command goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_skills import RECIPE, write_skill

from kmem.devices import named_target
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.problem.source.load import load_problem
from kmem.records import Contract
from kmem.run.setup.session import open_session
from kmem.skills import bundled_skills_root

GREETING = (
    "import click, kmem\n"
    "@click.command()\n"
    "def greet():\n"
    '    """Greet whoever asks."""\n'
    "    click.echo('hello')\n"
    "@kmem.hookimpl\n"
    "def register_commands(cli):\n"
    "    cli.add_command(greet)\n"
)


def install(place: Path, name: str, source: str) -> None:
    """A distribution with one plugin, as pip would lay it out."""
    (place / f"{name}.py").write_text(source)
    about = place / f"kmem_{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kmem-{name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[kmem]\n{name} = {name}\n")


def kmem(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kmem", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(place), "KMEM_DB": str(place / "k.db"), **variables},
    )


BREAKS_WHEN_ASKED = RECIPE.replace("return []", "raise SystemExit('match bug')")
PROBLEM = """
import torch

ROWS = 64

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.randn(ROWS, 64)]
"""
HOOK = "import kmem, sys\n@kmem.hookimpl\ndef register_skills(register):\n    "


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"{HOOK}raise ValueError('no luck')\n", "register_skills raises ValueError: no luck"),
        (f"{HOOK}sys.exit('plugin bug')\n", "register_skills raises SystemExit: plugin bug"),
        (f"{HOOK}register('a/path')\n", "registers 'a/path', which is a str and no Path"),
        ("import sys\nsys.exit(3)\n", "importing it raises SystemExit: 3"),
        ("import nowhere_to_be_found\n", "importing it raises ModuleNotFoundError"),
        (HOOK.replace("skills", "skils") + "pass\n", "unknown hook 'register_skils'"),
        (
            GREETING.replace("def greet", "def optimize").replace("(greet)", "(optimize)"),
            "plugins kmem and kmem-broken:broken both register the command 'optimize'",
        ),
    ],
)
def test_a_broken_plugin_is_one_warning_and_every_command_goes_on(
    tmp_path: Path, source: str, reason: str
) -> None:
    install(tmp_path, "broken", source)
    install(tmp_path, "greeting", GREETING)
    done = kmem(tmp_path, "--help")
    assert done.returncode == 0
    (warning,) = done.stderr.splitlines()
    assert warning.startswith("Warning: Plugin kmem-broken:broken is left out: ")
    assert reason in warning
    assert warning.endswith("or leave all plugins out with KMEM_LOAD_PLUGINS=")
    assert "  optimize   Make the module in PROBLEM fast." in done.stdout
    assert "  greet      Greet whoever asks." in done.stdout
    assert kmem(tmp_path, "--help", KMEM_LOAD_PLUGINS="").stderr == ""


def test_doctor_lists_what_is_left_out_and_plugins_what_is_not(tmp_path: Path) -> None:
    install(tmp_path, "broken", f"{HOOK}raise ValueError('no luck')\n")
    install(tmp_path, "greeting", GREETING)
    (tmp_path / "skills" / "swish-fast").mkdir(parents=True)
    (tmp_path / "skills" / "swish-fast" / "SKILL.md").write_text("garbage")
    write_skill(tmp_path / "skills", "bad-recipe", recipe="raise ValueError('recipe bug')\n")
    bad_rewrite = write_skill(tmp_path / "skills", "bad-rewrite")
    (bad_rewrite / "rewrite.py").write_text("import nowhere_to_be_found\n")
    done = kmem(tmp_path, "doctor", "--no-measure", "--json", KMEM_EMBEDDING_MODEL="none")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["plugins"]["ok"] is False
    assert "kmem-broken:broken" in checks["plugins"]["detail"]
    assert checks["skills"]["ok"] is False
    assert "swish-fast" in checks["skills"]["detail"]
    for name, file, reason in (
        ("bad-recipe", "recipe.py", "ValueError: recipe bug"),
        ("bad-rewrite", "rewrite.py", "ModuleNotFoundError"),
    ):
        assert f"Skill {name} is left out: " in checks["skills"]["detail"]
        assert f"{file} fails on import: {reason}" in checks["skills"]["detail"]
        assert f"mend or remove {tmp_path / 'skills' / name}" in checks["skills"]["detail"]
    listed = json.loads(kmem(tmp_path, "plugins", "--json").stdout)["plugins"]
    assert {"kind": "command", "name": "greet", "plugin": "kmem-greeting:greeting"} in listed
    assert {each["kind"] for each in listed} >= {"skill", "author", "provider", "executor"}


def test_a_database_in_a_clone_registers_each_skill_once(tmp_path: Path) -> None:
    root = bundled_skills_root().parent
    words = ("skills", "show", "online-softmax", "--json")
    done = kmem(tmp_path, *words, KMEM_DB=str(root / "k.db"), KMEM_EMBEDDING_MODEL="none")
    (root / "k.db").unlink(missing_ok=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_skill_of_which_nothing_can_be_read_is_one_warning_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "skills" / "swish-fast").mkdir(parents=True)
    (tmp_path / "skills" / "swish-fast" / "SKILL.md").write_text("garbage")
    for words in (
        ("skills", "list", "--json"),
        ("skills", "search", "softmax", "--json"),
        ("skills", "show", "online-softmax", "--json"),
    ):
        done = kmem(tmp_path, *words, KMEM_EMBEDDING_MODEL="none")
        assert done.returncode == 0
        assert "online-softmax" in done.stdout
        assert "swish-fast" not in done.stdout
        warnings = done.stderr.splitlines()
        assert len(warnings) == (words[1] != "show")
        assert all("swish-fast is left out: SKILL.md does not begin" in line for line in warnings)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("raise SystemExit('recipe bug')\n", "recipe.py fails on import: SystemExit: recipe bug"),
        ("RECIPE = 3\n", "defines no RECIPE that is a kmem.recipes.Recipe"),
        (BREAKS_WHEN_ASKED, "the recipe of swish-fast raises SystemExit: match bug"),
    ],
)
def test_a_skill_whose_recipe_is_broken_is_left_out_of_a_run_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recipe: str, reason: str
) -> None:
    broken = write_skill(tmp_path, "swish-fast", recipe=recipe)
    sound = bundled_skills_root() / "fuse-pointwise-chain"
    (tmp_path / "p.py").write_text(PROBLEM)
    registry = Registry(skills={"swish-fast": broken, "fuse-pointwise-chain": sound})
    with Memory(tmp_path / "k.db") as memory:
        session = open_session(
            load_problem(tmp_path / "p.py"),
            Contract(),
            named_target("h200"),
            False,
            registry,
            memory,
        )
    assert set(session.skills) == set(session.recipes) == {"fuse-pointwise-chain"}
    assert list(session.writable) == ["fuse-pointwise-chain"]
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert reason in warning
    assert any(reason in note for note in session.notes)
