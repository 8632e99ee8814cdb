"""Write db/schema.sql from the migrations: `python tools/write_schema.py`.

tests/test_memory_schema.py checks that the file is current.
"""

from pathlib import Path

from sqlite_utils import Database

from kmem.memory.migrations import migrations

SCHEMA = Path(__file__).parent.parent / "db" / "schema.sql"


def schema_sql() -> str:
    """Every statement that makes a fresh database.

    The tables that SQLite and sqlite-utils keep for themselves are left out.
    """
    database = Database(memory=True)
    migrations.apply(database)
    rows = database.query(
        """
        select sql from sqlite_master
        where sql is not null
          and name not like 'sqlite_%'
          and tbl_name not like '\\_sqlite\\_migrations' escape '\\'
          and name not like 'skill\\_text\\_%' escape '\\'
        order by rowid
        """
    )
    header = "-- Generated from kmem/memory/schema.py by tools/write_schema.py. Do not edit.\n\n"
    return header + "\n\n".join(_dedent(row["sql"]) + ";" for row in rows) + "\n"


def _dedent(sql: str) -> str:
    lines = sql.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    return "\n".join([lines[0].strip(), *(line[margin:].rstrip() for line in lines[1:])]).strip()


if __name__ == "__main__":
    SCHEMA.write_text(schema_sql(), encoding="utf-8")
