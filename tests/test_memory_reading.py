"""Commands that only read: no database is made, and one that may not be written is read."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_store import RUN, make_outcome

from kmem.cli import cli
from kmem.errors import MemoryStoreError
from kmem.memory.storage import connect_to_read
from kmem.memory.store import Memory
from kmem.memory.team.exchange import merge_memory
from kmem.plugins import build_plugin_manager, collect

READING = [
    ["runs"],
    ["runs", "list", "--json"],
    ["memory", "stats"],
    ["memory", "trust"],
    ["memory", "export", "out.jsonl"],
    ["db", "verify"],
    ["why", "r1"],
    ["skills", "list"],
    ["skills", "show", "online-softmax"],
    ["skills", "search", "softmax"],
    ["doctor", "--no-measure"],
    ["runs", "show", "r1"],
    ["runs", "resume", "r1"],
    ["runs", "replay", "r1"],
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_mistyped_database_is_not_made_by_reading(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "deep" / "mistyped.db"))
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    result = CliRunner().invoke(cli, words, obj=collect(build_plugin_manager()))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database in a directory that nobody may write to: not even root, on a real share."""
    path = tmp_path / "share" / "kmem.db"
    with Memory(path) as memory:
        memory.ledger.record(make_outcome())
        memory.runs.start(RUN)
    share = path.parent
    allowed, connect = os.access, sqlite3.connect

    def access(place: object, mode: int, **options: bool) -> bool:
        if mode == os.W_OK and Path(str(place)).is_relative_to(share):
            return False
        return allowed(place, mode, **options)

    def refuse_writing(place: object, *arguments: object, **options: object) -> sqlite3.Connection:
        if Path(str(place)) == path:
            raise AssertionError("opened for writing")
        return connect(place, *arguments, **options)

    monkeypatch.setattr("os.access", access)
    monkeypatch.setattr("sqlite3.connect", refuse_writing)
    return path


def test_a_memory_on_a_read_only_share_is_read_and_left_as_it_is(
    share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = share.read_bytes()
    monkeypatch.setenv("KMEM_DB", str(share))
    counts = json.loads(CliRunner().invoke(cli, ["memory", "stats", "--json"]).stdout)
    assert (counts["outcomes"], counts["runs"]) == (1, 1)
    assert RUN.id in CliRunner().invoke(cli, ["runs"]).stdout
    assert "trust" in CliRunner().invoke(cli, ["memory", "trust"]).stdout
    assert share.read_bytes() == before


def test_a_memory_on_a_read_only_share_is_merged(share: Path, tmp_path: Path) -> None:
    with Memory(tmp_path / "own" / "kmem.db") as memory:
        assert merge_memory(memory, share).outcomes == 1


def test_a_file_that_is_opened_to_read_cannot_be_written(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        memory.ledger.record(make_outcome())
    connection = connect_to_read(tmp_path / "kmem.db")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("insert into trust values ('ann', 0.5)")
    connection.close()


def test_a_foreign_file_is_refused_to_readers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table t (x)")
    shutil.copy(tmp_path / "other.db", tmp_path / "copy.db")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(MemoryStoreError, match="belongs to another program"):
        Memory.to_read(tmp_path / "copy.db")
