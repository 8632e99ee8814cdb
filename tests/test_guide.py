"""docs/skills.md is followed word by word: its files are written and its commands run."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from kmem.cli import cli
from kmem.plugins import build_plugin_manager, collect

pytestmark = pytest.mark.usefixtures("shared_template")

GUIDE = Path(__file__).parent.parent / "docs" / "skills.md"
_BLOCK = re.compile(r"^(?P<before>[^\n]*)\n\n?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def steps() -> list[tuple[str, str]]:
    """What the guide does: ("sh", a command) or (the path of a file, its text)."""
    found: list[tuple[str, str]] = []
    for block in _BLOCK.finditer(GUIDE.read_text(encoding="utf-8")):
        if block["kind"] == "sh":
            found += [("sh", line) for line in block["text"].splitlines()]
        else:
            found.append((re.findall(r"`([^`]+)`:$", block["before"])[-1], block["text"]))
    return found


@pytest.mark.slow
def test_the_guide_leads_from_an_idea_to_an_admitted_skill_with_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "data" / "kmem.db"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        # in this process: each of a dozen would import torch anew
        done = CliRunner().invoke(cli, words, obj=collect(build_plugin_manager()))
        assert done.exit_code == 0, f"{words}: {done.output}"
        return done.stdout

    said = {}
    for kind, text in steps():
        if kind != "sh":
            (tmp_path / kind).write_text(text, encoding="utf-8")
            continue
        words = shlex.split(text)
        assert words[0] == "kmem"
        said[text] = run(*words[1:])  # of a command given twice, the second

    tried = said["kmem skills try squared-relu squared_relu.py"]
    assert re.search(r"^relu .* pow_1 *$", tried, re.M)
    assert "at small sizes: passed" in tried
    rewritten = said["kmem skills try relu-once problem.py"]
    assert "# ---- rewritten at relu_1: relu_1 is the relu of a relu" in rewritten
    assert "at small sizes: passed" in rewritten
    found = said['kmem skills search "relu squared in one kernel"']
    assert found.startswith(" 1. squared-relu (added; recipe)\n")
    assert (tmp_path / "data" / "skills" / "squared-relu" / "recipe.py").is_file()
    run(
        *("optimize", "squared_relu.py", "--target", "h200", "--memory", "off"),
        *("--rounds", "0", "--candidates", "2", "--minutes", "0.1", "--out", "run"),
    )
    written = [file.read_text(encoding="utf-8") for file in tmp_path.glob("run/attempts/*/*.json")]
    assert any('"recipe": "squared-relu"' in text for text in written), "runs write by it"
