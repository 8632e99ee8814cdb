"""Every migration, from a file with rows that the kmem before it wrote: what was there stays, and
what is new works on it.
"""

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
from test_memory_store import DIAGNOSIS, RUN, make_attempt, make_outcome

from kmem.cli.why import why
from kmem.errors import MemoryStoreError
from kmem.memory.ledger.outcomes import pack_sizes
from kmem.memory.ledger.posteriors import Posterior
from kmem.memory.migrations import migrations
from kmem.memory.runs.runs import RoundPlan
from kmem.memory.store import Memory
from kmem.memory.verify import verify_memory
from kmem.records import Bottleneck, Move, Outcome, Plan, Prescription, Task, Veto
from kmem.serialize import to_data, to_json

NAMES = [migration.name for migration in migrations.pending(Database(memory=True))]
PLAN = Plan(
    (Task(Move.TUNE, "reduce", None, 3, "move the knobs"),),
    (Veto("slow", "4 candidates, far slower"),),
    "3 samples",
)


def old_database(path: Path, stop_before: str, outcomes: list[Outcome]) -> None:
    """A file as the kmem before a migration left it, with a run and outcomes, written by plain SQL."""
    database = Database(path)
    migrations.apply(database, stop_before=stop_before)
    insert = database.conn.execute
    insert(
        "insert into runs (id, state, record, created_at) values (?, 'running', ?, ?)",
        [RUN.id, to_json(RUN), RUN.created_at],
    )
    for outcome in outcomes:
        insert(
            "insert or ignore into graphs values (?, ?, ?)",
            [outcome.graph_hash, outcome.structure_hash, pack_sizes(outcome.sizes)],
        )
        insert(
            """
            insert into outcomes
                (hash, graph_hash, arch, precision, purity, skill, status, source_hash, latency_ms, created_at, record)
            values (?, ?, 'sm_90', 'match', 'library', ?, 'passed', ?, ?, ?, ?)
            """,
            [
                outcome.hash,
                outcome.graph_hash,
                outcome.skill,
                outcome.source_hash,
                outcome.latency_ms,
                outcome.created_at,
                to_json(outcome),
            ],
        )
    if stop_before <= "m005_sum_outcomes_as_they_arrive":  # which took the column away
        database.conn.execute("drop trigger outcomes_are_never_updated")
        database.conn.execute("update outcomes set log_speedup = 0.5")
        database.conn.execute(
            """
            create trigger outcomes_are_never_updated before update on outcomes
            begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end
            """
        )
    database.conn.commit()
    database.close()


@pytest.mark.parametrize("stop_before", NAMES[1:])
def test_rows_of_the_version_before_a_migration_stay_and_work_with_what_is_new(
    tmp_path: Path, stop_before: str
) -> None:
    path = tmp_path / "kmem.db"
    outcomes = [make_outcome(1.0 + number, created_at=f"{number}") for number in range(3)]
    old_database(path, stop_before, outcomes)
    with Memory(path) as memory:
        assert migrations.pending(memory.storage.db) == []
        assert memory.runs.get(RUN.id) == RUN
        assert memory.ledger.outcomes() == outcomes
        memory.runs.put_plan(RUN.id, 0, PLAN)
        assert memory.runs.plans(RUN.id) == [RoundPlan(0, PLAN)]
        found = memory.track_records.posteriors(
            ["online-softmax"],
            bottleneck=Bottleneck.LATENCY,
            operators=("softmax",),
            arch="sm_90",
            versions={},
        )
        assert isinstance(found["online-softmax"], Posterior)
        assert found["online-softmax"].tried == 3
        assert memory.contributors.own_name.startswith("kmem-")
        assert verify_memory(memory) == []


def test_a_migration_that_is_killed_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "kmem.db"
    old_database(path, NAMES[1], [make_outcome()])
    code = textwrap.dedent(
        """
        import os, signal, sys
        from kmem.memory import migrations as module
        from kmem.memory.store import Memory
        module._CONTRIBUTORS = (*module._CONTRIBUTORS, "select kill()")
        import sqlite_utils
        class Killed(sqlite_utils.Database):
            def execute(self, sql, *arguments):
                if sql == "select kill()":
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().execute(sql, *arguments)
        import kmem.memory.storage as storage
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
        "  Offered: reduce (score 0.250)",
        "    - treats latency",
        "    - never tried",
        "  Plan: 3 samples",
        "    tune reduce, 3 candidates: move the knobs",
        "    vetoed slow: 4 candidates, far slower",
        "  Came of it: 1 attempts, 1 passed, the fastest 1 ms by reduce",
    ]
    (data,) = json.loads(
        CliRunner().invoke(why, [RUN.id, "--json"], catch_exceptions=False).stdout
    )["rounds"]
    assert data["plan"]["vetoes"] == [to_data(PLAN.vetoes[0])]
    with pytest.raises(MemoryStoreError, match="has no round 7; it has rounds 1"):
        CliRunner().invoke(why, [RUN.id, "7"], catch_exceptions=False)
