"""Imports point down only, and importing the command line stays cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kmem"

#: Position in the layers; a module may import only from lower ranks or, below rank 4, from its own.
RANK = {
    "records": 0, "errors": 0, "syntax": 0, "vocabulary": 0, "devices": 0, "environment": 0, "counters": 0, "parallel": 0, "lease": 0,
    "problem": 2, "codegen": 2, "interfaces": 2, "hookspecs": 2, "skills": 2, "recipes": 2, "serialize": 2,
    "memory": 3, "providers": 3,
    "profile": 4, "diagnose": 4, "prescribe": 4, "orchestrate": 4, "explore": 4, "measure": 4,
    "default_plugins": 5, "testing": 5, "plugins": 5, "rundir": 5, "report": 5, "session": 5, "workbench": 5, "loop": 5, "bench": 5,
    "laboratory": 5, "situations": 5, "authoring": 5, "reflection": 5, "conclusion": 5, "replay": 5, "archive": 5, "deadline": 5,
    "judging": 5, "library": 5, "mcp": 5, "learning": 5,
    "cli": 6,
}  # fmt: skip
STAGES = {"profile", "diagnose", "prescribe", "orchestrate", "explore", "measure"}
HEAVY = {"torch", "triton", "openai", "anthropic", "sentence_transformers", "sqlite_utils", "mcp"}


def layer(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imported_modules(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
    return [name for name in names if name.split(".")[0] == "kmem" and name != "kmem"]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_down_and_stages_do_not_import_each_other(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    here = parts[0]
    if here.startswith("__"):
        return
    for name in imported_modules(path):
        target = layer(name)
        assert RANK[target] <= RANK[here], f"{path.name} ({here}) must not import {name}"
        if here in STAGES and target in STAGES:
            assert target == here, f"stage {here} must not import stage {target}"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_is_longer_than_400_lines(path: Path) -> None:
    if path.name == "records.py":  # one table of nouns reads better whole
        return
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, kmem.cli, kmem.plugins; kmem.cli.add_commands(); "
        "kmem.plugins.collect(kmem.plugins.build_plugin_manager()); "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
