"""A damaged database: what can be read of it is saved into a new one, and what is lost is said."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_store import RUN, make_outcome

from kmem.cli.memory.db import db
from kmem.errors import MemoryStoreError
from kmem.memory.recover import Saved, recover_memory
from kmem.memory.store import Memory
from kmem.memory.verify import verify_memory
from kmem.records import Kernel

OUTCOMES = 400
PAGE = 4096


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "kmem.db"
    with Memory(path) as memory:
        for number in range(OUTCOMES):
            memory.ledger.record(make_outcome(1.0 + number))
        memory.runs.start(RUN)
        memory.runs.put_kernel(Kernel("fast"))
        memory.ledger.retract(make_outcome(1.0).hash, "clock was wrong", "test")
        memory.contributors.set_trust("ann", 0.5)
        assert memory.contributors.own_name, "made when it is first asked for"
        memory.storage.db.execute("pragma wal_checkpoint(truncate)")
    return path


def spoil_outcomes(path: Path) -> None:
    """Write nonsense over a leaf page in the middle of the table of outcomes."""
    with sqlite3.connect(path) as connection:
        pages = [
            number
            for (number,) in connection.execute(
                "select pageno from dbstat where name = 'outcomes' and pagetype = 'leaf'"
            )
        ]
    with path.open("r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * PAGE)
        file.write(b"\xff" * PAGE)


def has_dbstat() -> bool:
    try:
        sqlite3.connect(":memory:").execute("select 1 from dbstat")
    except sqlite3.OperationalError:
        return False
    return True


@pytest.fixture(params=["with the shell", "without"])
def shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr("kmem.memory.recover.shutil.which", lambda name: None)
    elif shutil.which("sqlite3") is None:
        pytest.skip("SQLite's shell is not installed")


def find(saved: list[Saved], table: str) -> Saved:
    return next(entry for entry in saved if entry.table == table)


def test_a_whole_database_is_saved_whole(filled: Path, tmp_path: Path, shell: None) -> None:
    saved = recover_memory(filled, tmp_path / "new.db")
    assert find(saved, "outcomes") == Saved("outcomes", OUTCOMES, 0)
    assert all(entry.lost == 0 for entry in saved)
    with Memory(filled) as old, Memory(tmp_path / "new.db") as new:
        assert new.ledger.outcomes() == old.ledger.outcomes()
        assert new.ledger.retractions() == old.ledger.retractions()
        assert new.run_entries.all() == old.run_entries.all()
        assert new.contributors.own_name == old.contributors.own_name
        assert new.contributors.trust() == old.contributors.trust()
        assert new.runs.kernel(Kernel("fast").hash) == Kernel("fast")
        assert verify_memory(new) == []


def test_a_spoilt_page_costs_the_rows_on_it_and_no_others(
    filled: Path, tmp_path: Path, shell: None
) -> None:
    if not has_dbstat():
        pytest.skip("this SQLite cannot say which page is which")
    spoil_outcomes(filled)
    with Memory(filled) as memory, pytest.raises(MemoryStoreError, match="kmem db recover"):
        memory.ledger.outcomes()
    saved = find(recover_memory(filled, tmp_path / "new.db"), "outcomes")
    assert OUTCOMES - 10 <= saved.rows < OUTCOMES
    assert saved.lost >= OUTCOMES - saved.rows
    with Memory(tmp_path / "new.db") as new:
        assert len(new.ledger.outcomes()) == saved.rows - 1, "one is retracted"
        assert verify_memory(new) == []


@pytest.mark.parametrize("rubbish", [b"\xff", b"\0"])
def test_a_file_without_its_first_page_is_saved_whole(
    rubbish: bytes, filled: Path, tmp_path: Path, shell: None
) -> None:
    with filled.open("r+b") as file:
        file.write(rubbish * PAGE)
    with pytest.raises(MemoryStoreError, match="kmem db recover"):
        Memory(filled)
    saved = recover_memory(filled, tmp_path / "new.db")
    assert find(saved, "outcomes") == Saved("outcomes", OUTCOMES, 0)
    assert all(entry.lost == 0 for entry in saved)
    with Memory(tmp_path / "new.db") as new:
        assert len(new.ledger.outcomes()) == OUTCOMES - 1, "one is retracted"
        assert new.runs.kernel(Kernel("fast").hash) == Kernel("fast")
        assert verify_memory(new) == []


def test_an_outcome_that_was_altered_is_not_saved(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("drop trigger outcomes_are_never_updated")
        connection.execute(
            "update outcomes set record = replace(record, '\"latency_ms\": 5.0', "
            "'\"latency_ms\": 0.1') where latency_ms = 5.0"
        )
    assert find(recover_memory(filled, tmp_path / "new.db"), "outcomes") == Saved(
        "outcomes", OUTCOMES - 1, 1
    )


def test_what_refers_to_a_run_that_is_lost_is_left_out(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as connection:
        connection.execute("insert into lessons values ('r9', 0, 0, '{}')")
    saved = recover_memory(filled, tmp_path / "new.db")
    assert find(saved, "lessons").rows == 0
    with Memory(tmp_path / "new.db") as new:
        assert verify_memory(new) == []


def test_a_file_of_nonsense_saves_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kmem.db").write_bytes(b"nonsense " * 1000)
    with pytest.raises(MemoryStoreError, match="Nothing can be read"):
        recover_memory(tmp_path / "kmem.db", tmp_path / "new.db")
    assert [place.name for place in tmp_path.iterdir()] == ["kmem.db"]


def test_nothing_is_overwritten(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("mine")
    with pytest.raises(MemoryStoreError, match="exists already"):
        recover_memory(filled, tmp_path / "new.db")


def test_the_command_says_what_was_saved_and_where(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KMEM_DB", str(filled))
    done = CliRunner().invoke(db, ["recover"])
    assert done.stdout == f"{filled.parent / 'kmem-recovered.db'}\n"
    assert f"outcomes: {OUTCOMES} saved\n" in done.stderr
