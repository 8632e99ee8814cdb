"""What makes the tables of a database, and what changes them in a file that an older kmem wrote.

After the first release migrations are only ever appended, `mNNN_verb_noun(db)`, and never edited.
"""

from zlib import crc32

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from kmem.memory.schema import TABLES

#: "kmem" in ASCII, in the file's header: tells a kmem database from any other SQLite file.
#: Source: sqlite.org/pragma.html#pragma_application_id.
APPLICATION_ID = 0x6B6D656D
#: What the first migration makes, in the file's header. Until the first release the tables are
#: edited where they stand, and files with others are refused. Source:
#: sqlite.org/pragma.html#pragma_user_version.
FORMAT = crc32("\n".join(TABLES).encode()) >> 1

migrations = Migrations("kmem")


@migrations()
def m001_create_memory(db: Database) -> None:
    """Every table of the first release."""
    db.execute(f"pragma application_id = {APPLICATION_ID:d}")  # a pragma takes no bound parameter
    db.execute(f"pragma user_version = {FORMAT:d}")
    for statement in TABLES:
        db.execute(statement)
