"""The tables: the generated schema is current, every table is strict, the pragmas hold."""

import importlib.util
from pathlib import Path

from kmem.memory.migrations import APPLICATION_ID, migrations
from kmem.memory.store import Memory

ROOT = Path(__file__).parent.parent


def _write_schema():
    spec = importlib.util.spec_from_file_location(
        "write_schema", ROOT / "tools" / "write_schema.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_schema_file_is_what_the_migrations_make() -> None:
    module = _write_schema()
    assert module.SCHEMA == ROOT / "db" / "schema.sql"
    assert module.SCHEMA.read_text(encoding="utf-8") == module.schema_sql(), (
        "run: python tools/write_schema.py"
    )


def test_every_table_of_ours_is_strict(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        rows = memory.storage.read(
            "select name, strict from pragma_table_list where schema = 'main' and type = 'table'"
        )
    ours = {
        row["name"]: row["strict"]
        for row in rows
        if not row["name"].startswith(("sqlite_", "_sqlite_", "skill_text"))
    }
    assert len(ours) >= 13
    assert set(ours.values()) == {1}


def test_the_file_is_marked_as_kmems_and_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        assert memory.storage.read("pragma application_id") == [{"application_id": APPLICATION_ID}]
        assert memory.storage.read("pragma journal_mode") == [{"journal_mode": "wal"}]
        assert memory.storage.read("pragma foreign_keys") == [{"foreign_keys": 1}]
        assert migrations.pending(memory.storage.db) == []


def test_the_recall_and_skill_queries_walk_an_index(tmp_path: Path) -> None:
    with Memory(tmp_path / "kmem.db") as memory:
        by_graph = memory.storage.read(
            """
            explain query plan select id from outcomes
            where graph_hash = ?
              and arch = ?
              and precision = ?
              and purity = ?
              and status = 'passed'
            order by latency_ms
            """,
            ["", "", "", ""],
        )
        by_skill = memory.storage.read(
            "explain query plan select * from skill_sums where skill = ?", [""]
        )
    (step,) = by_graph  # one step: no sorting afterwards
    searched = "graph_hash=? AND arch=? AND precision=? AND purity=? AND status=?"
    assert f"INDEX outcomes_by_graph ({searched})" in step["detail"]
    assert any("(skill=?)" in row["detail"] for row in by_skill)
