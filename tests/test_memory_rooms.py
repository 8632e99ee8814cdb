"""Imports inside kmem/memory point down: from what is asked of a memory to the file it lies in."""

from pathlib import Path

import pytest
from test_layers import PACKAGE, imported_modules

#: The rooms and files of the memory, each above all that it may import; those of one tuple may not
#: import each other.
FLOORS = (
    ("location", "schema"),
    ("migrations",),
    ("storage",),
    ("runs", "ledger", "devices"),
    ("skills",),
    ("store",),
    ("stats", "verify", "team"),
    ("recover",),
)
RANK = {name: floor for floor, names in enumerate(FLOORS) for name in names}
FILES = sorted(path for path in (PACKAGE / "memory").rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_inside_the_memory_point_down(path: Path) -> None:
    here = path.relative_to(PACKAGE / "memory").with_suffix("").parts[0]
    for name in imported_modules(path):
        parts = name.split(".")
        if parts[1] == "memory":
            target = parts[2]
            assert target == here or RANK[target] < RANK[here], f"{here} must not import {name}"
