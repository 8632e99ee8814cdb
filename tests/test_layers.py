"""Imports point down only, and importing the command line stays cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kmem"

#: The six stages of a round: none imports another.
STAGES = ("profile", "diagnose", "prescribe", "orchestrate", "explore", "measure")
#: Every room (a package or a file at the top of kmem) above all that it may import. Rooms in one
#: tuple may not import each other.
FLOORS = (
    ("errors",),
    ("records",),
    ("serialize", "vocabulary", "counters"),
    ("host",),
    ("devices",),
    ("problem",),
    ("recipes",),
    ("codegen",),
    ("skills",),
    ("interfaces",),
    ("hookspecs",),
    ("plugins",),
    ("bench", "providers"),
    ("memory",),
    STAGES,
    ("curate", "default_plugins"),
    ("run",),
    ("learning", "mcp", "testing"),
    ("cli",),
)
RANK = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
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


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_imports_point_down(path: Path) -> None:
    here = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if here.startswith("__"):
        return
    for name in imported_modules(path):
        target = layer(name)
        assert target == here or RANK[target] < RANK[here], (
            f"{path.name} ({here}) must not import {name}"
        )


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
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
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
