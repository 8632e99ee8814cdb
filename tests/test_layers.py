"""Imports point down only and in no circle, and importing the command line stays cheap."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kmem"

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
    ("engines",),
    ("problem",),
    ("recipes", "rewrites"),
    ("algebra", "codegen"),
    ("skills",),
    ("moves",),
    ("interfaces",),
    ("hookspecs",),
    ("plugins",),
    ("bench", "providers"),
    ("memory",),
    STAGES,
    ("curate", "default_plugins"),
    ("run",),
    ("away",),
    ("deploy",),
    ("whole",),
    ("api",),
    ("learning", "mcp", "testing"),
    ("ui",),
    ("cli",),
)
#: The same inside a room that has rooms of its own.
FLOORS_WITHIN = {
    "cli": (
        ("exit_codes", "display"),
        ("bad_input", "group", "options", "page_beside"),
        ("actions",),
        ("memory",),
        ("making",),
        ("by_hand", "runs", "shipping", "skills", "machine"),
        ("commands",),
    ),
    "codegen": (
        ("settings", "rates", "steady"),
        ("text",),
        ("regions",),
        ("chains",),
        ("rows", "scans", "products", "convolutions"),
        ("module",),
    ),
    "measure.oracle": (
        ("correctness",),
        ("running",),
        ("inputs", "answers"),
        ("exploration",),
        ("reference",),
        ("domain", "lost", "spots"),
    ),
    "problem": (
        ("dtypes", "sizes", "graph"),
        ("operators",),
        ("homes",),
        ("described", "tracing", "costs"),
        ("source", "features"),
        ("sizing", "traced"),
        ("breakdown",),
    ),
    "run": (
        ("directory",),
        ("setup",),
        ("state", "report"),
        ("evaluation",),
        ("stages",),
        ("loop",),
        ("ahead", "perform", "replay"),
    ),
    "whole": (
        ("turns", "state"),
        ("process",),
        ("graphs",),
        ("cutting",),
        ("accounting", "composing", "training"),
        ("proving",),
        ("holding", "report", "result"),
        ("beginning", "opening", "trying"),
        ("optimizing",),
        ("at_shapes",),
    ),
}
RANK = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = {"torch", "triton", "openai", "anthropic", "sentence_transformers", "sqlite_utils", "mcp"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def modules() -> dict[str, Path]:
    """Every file of kmem by the name under which it is imported."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """The files of kmem that a file imports, also inside functions, by name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name if name in modules() else node.module for name in inside]
    return tuple(dict.fromkeys(name for name in names if name in modules() and name != "kmem"))


def test_imports_point_down() -> None:
    upward = []
    for path in modules().values():
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if here.startswith("__"):
            continue
        upward += [
            f"{path.relative_to(ROOT)} ({here}) must not import {name}"
            for name in imported_modules(path)
            if room_of(name) != here and RANK[room_of(name)] >= RANK[here]
        ]
    assert upward == []


@pytest.mark.parametrize("room", FLOORS_WITHIN)
def test_imports_within_a_room_point_down(room: str) -> None:
    """Each of its parts, a package or a file, imports only what lies on a floor below its own."""
    rank = {part: floor for floor, parts in enumerate(FLOORS_WITHIN[room]) for part in parts}
    prefix, found, upward = f"kmem.{room}.", set(), []
    for name, path in modules().items():
        if not name.startswith(prefix):
            continue
        here = name.removeprefix(prefix).split(".")[0]
        found.add(here)
        for other in imported_modules(path):
            there = other.removeprefix(prefix).split(".")[0]
            if other.startswith(prefix) and there != here and rank[there] >= rank[here]:
                upward.append(f"{path.relative_to(ROOT)} ({here}) must not import {other}")
    assert upward == []
    assert set(rank) == found


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    rooms |= {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    assert set(RANK) == rooms


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions count: they hide a circle, they do not open it."""
    assert find_circle({name: imported_modules(path) for name, path in modules().items()}) == []


def find_circle(imports: dict[str, tuple[str, ...]]) -> list[str]:
    """A chain of names each of which imports the next, the first again at its end; or nothing."""
    done: set[str] = set()

    def walk(name: str, chain: list[str]) -> list[str]:
        if name in chain:
            return [*chain[chain.index(name) :], name]
        if name in done:
            return []
        for other in imports[name]:
            if circle := walk(other, [*chain, name]):
                return circle
        done.add(name)
        return []

    for name in imports:
        if circle := walk(name, []):
            return circle
    return []


def test_a_circle_is_found_and_a_diamond_is_none() -> None:
    diamond = {"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()}
    assert find_circle(diamond) == []
    assert find_circle({**diamond, "d": ("b",)}) == ["b", "d", "b"]


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, kmem.cli, kmem.plugins; "
        "kmem.plugins.collect(kmem.plugins.build_plugin_manager()); "
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
