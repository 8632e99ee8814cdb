"""`kmem db` and `kmem memory`: the file, and sharing what is in it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_store import make_outcome

from kmem.cli.memory.db import db
from kmem.cli.memory.memory import memory as memory_group
from kmem.errors import MemoryStoreError
from kmem.memory.store import Memory, default_db_path


def test_path_is_the_default_and_creates_nothing() -> None:
    for arguments in ([], ["path"]):
        assert CliRunner().invoke(db, arguments).stdout == f"{default_db_path()}\n"
    assert not default_db_path().exists()


def test_verify_says_what_is_damaged() -> None:
    with Memory() as memory:
        memory.ledger.record(make_outcome())
        assert CliRunner().invoke(db, ["verify"]).stderr == f"{default_db_path()}: no faults\n"
        memory.storage.db.execute("drop trigger outcomes_are_never_updated")
        memory.storage.db.execute("update outcomes set record = '{}'")
    result = CliRunner().invoke(db, ["verify"])
    assert result.stdout.endswith("its record has another hash\n")
    assert isinstance(result.exception, MemoryStoreError)
    assert "has 1 faults" in str(result.exception)


def test_an_export_imports_into_a_fresh_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory() as memory:
        memory.ledger.record(make_outcome())
    exported = CliRunner().invoke(
        memory_group, ["export", str(tmp_path / "a.jsonl"), "--no-sources"]
    )
    assert exported.stderr == f"{tmp_path / 'a.jsonl'}: 1 outcomes, 0 retractions, 0 kernels\n"
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "fresh.db"))
    for count in (1, 0):
        imported = CliRunner().invoke(memory_group, ["import", str(tmp_path)])
        assert imported.stderr == f"Added {count} outcomes, 0 retractions, 0 kernels\n"
    counts = json.loads(CliRunner().invoke(memory_group, ["stats", "--json"]).stdout)
    assert (counts["outcomes"], counts["passed"], counts["runs"]) == (1, 1, 0)
    assert "outcomes: 1\n" in CliRunner().invoke(memory_group, []).stdout
