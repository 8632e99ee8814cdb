"""Opening files that another kmem wrote: an older, a newer, one from before the first release."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlite_utils import Database
from sqlite_utils.migrations import Migrations
from test_memory_store import DIAGNOSIS, RUN, make_attempt, make_outcome

from kmem.cli.runs.why import why
from kmem.errors import MemoryStoreError
from kmem.memory import storage
from kmem.memory.migrations import APPLICATION_ID, m001_create_memory, migrations
from kmem.memory.runs.runs import RoundPlan
from kmem.memory.store import Memory
from kmem.memory.team.exchange import merge_memory
from kmem.memory.verify import verify_memory
from kmem.records import Move, Plan, Prescription, Task, Veto
from kmem.serialize import to_data

#: The migrations of every kmem from before the first release, in order.
UNRELEASED = (
    "m001_create_tables",
    "m002_add_plans",
    "m003_add_evidence",
    "m004_add_contributors",
    "m005_sum_outcomes_as_they_arrive",
    "m006_add_conversations",
    "m007_add_unanswered",
    "m008_find_outcomes_of_recipes",
)
PLAN = Plan(
    (Task(Move.TUNE, "reduce", None, 3, "move the knobs"),),
    (Veto("slow", "4 candidates, far slower"),),
    "3 samples",
)


def unreleased_database(path: Path, applied: int) -> None:
    """A file as a kmem from before the first release left it, with so many of its migrations."""
    database = Database(path)
    old = Migrations("kmem")
    for name in UNRELEASED[:applied]:
        old(name=name)(lambda db: None)
    database.execute(f"pragma application_id = {APPLICATION_ID:d}")
    database.execute("create table runs (id text primary key, record text not null) strict")
    database.execute("insert into runs values ('20260101-aaaa', '{}')")
    old.apply(database)
    database.conn.commit()
    database.close()


def later_migrations() -> Migrations:
    """What the next kmem may bring: one more migration, which adds a table."""
    later = Migrations("kmem")
    later(name="m001_create_memory")(m001_create_memory)
    later(name="m002_add_notes")(lambda db: db.execute("create table notes (text text) strict"))
    return later


@pytest.mark.parametrize("applied", [1, 4, len(UNRELEASED)])
def test_a_file_from_before_the_first_release_is_named_with_its_remedy_and_left_as_it_is(
    tmp_path: Path, applied: int
) -> None:
    path = tmp_path / "old.db"
    unreleased_database(path, applied)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    line = (
        f"Database {path} has the format of before the first release; "
        "export its outcomes with the kmem that wrote it (`kmem memory export`), "
        "then move it away, or choose another with KMEM_DB"
    )
    with pytest.raises(MemoryStoreError) as opened:
        Memory(path)
    assert str(opened.value) == line
    with Memory(tmp_path / "kmem.db") as memory:
        with pytest.raises(MemoryStoreError) as merged:
            merge_memory(memory, path)
        assert str(merged.value) == line
        assert memory.run_entries.all() == []
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [file.name for file in tmp_path.iterdir() if "old" in file.name] == ["old.db"]


def test_a_file_with_the_tables_of_another_commit_before_the_first_release_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kmem.db"
    Memory(path).close()
    Memory(path).close()  # this commit's own is opened again
    database = Database(path)
    database.execute("pragma user_version = 7")
    database.conn.commit()
    database.close()
    with pytest.raises(MemoryStoreError, match="has the format of before the first release"):
        Memory(path)


def test_a_later_migration_keeps_the_rows_and_an_older_kmem_refuses_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmem.db"
    outcomes = [make_outcome(1.0 + number, created_at=f"{number}") for number in range(3)]
    with Memory(path) as memory:
        memory.runs.start(RUN)
        memory.runs.put_plan(RUN.id, 0, PLAN)
        for outcome in outcomes:
            memory.ledger.record(outcome)
    with monkeypatch.context() as later:
        later.setattr(storage, "migrations", later_migrations())
        with Memory(path) as memory:
            assert storage.migrations.pending(memory.storage.db) == []
            assert memory.storage.read("select * from notes") == []
            assert memory.runs.get(RUN.id) == RUN
            assert memory.runs.plans(RUN.id) == [RoundPlan(0, PLAN)]
            assert memory.ledger.outcomes() == outcomes
            assert memory.track_records.of_skill("online-softmax")[0].tried == 3
            assert verify_memory(memory) == []
    with pytest.raises(MemoryStoreError, match=r"written by a newer kmem \(m002_add_notes\)"):
        Memory(path)


def test_a_migration_that_is_killed_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    code = textwrap.dedent(
        """
        import os, signal, sys
        import sqlite_utils
        from kmem.memory import migrations, storage
        from kmem.memory.store import Memory
        migrations.TABLES = (*migrations.TABLES, "select kill()")
        class Killed(sqlite_utils.Database):
            def execute(self, sql, *arguments):
                if sql == "select kill()":
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().execute(sql, *arguments)
        storage.Database = Killed
        Memory(sys.argv[1])
        """
    )
    assert (
        subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode
        == -signal.SIGKILL
    )
    assert os.path.getsize(path) > 0
    with Memory(path) as memory:
        assert memory.ledger.record(make_outcome())
        assert memory.ledger.outcomes() == [make_outcome()]
        assert migrations.pending(memory.storage.db) == []
        assert verify_memory(memory) == []


def test_why_tells_what_a_round_saw_was_offered_decided_and_got() -> None:
    with Memory() as memory:
        memory.runs.start(RUN)
        memory.runs.put_diagnosis(
            RUN.id,
            1,
            "k" * 64,
            DIAGNOSIS,
            [Prescription("reduce", 0.25, ("treats latency", "never tried"))],
        )
        memory.runs.put_plan(RUN.id, 1, PLAN)
        memory.runs.record_attempt(RUN.id, make_attempt("kernel 1"))
    shown = CliRunner().invoke(why, [RUN.id, "1"], catch_exceptions=False).stdout.splitlines()
    assert shown == [
        "Round 1",
        "  Diagnosis of kernel kkkkkkkkkkkk",
        "    too little in flight",
        "      1 of 26 dimensions known",
        "  Offered: reduce (score 0.250)",
        "    - treats latency",
        "    - never tried",
        "  Plan: 3 samples",
        "    tune reduce, 3 candidates: move the knobs",
        "    vetoed slow: 4 candidates, far slower",
        "  Came of it: 1 attempts, 1 passed, 2 planned and not judged (not written, the same as "
        "another, or the time was up), the fastest 1 ms by reduce",
    ]
    (data,) = json.loads(
        CliRunner().invoke(why, [RUN.id, "--json"], catch_exceptions=False).stdout
    )["rounds"]
    assert data["plan"]["vetoes"] == [to_data(PLAN.vetoes[0])]
    with pytest.raises(MemoryStoreError, match="has no round 7; it has rounds 1"):
        CliRunner().invoke(why, [RUN.id, "7"], catch_exceptions=False)
