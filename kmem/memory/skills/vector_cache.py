"""Vectors kept for memories that are not: a database that may not be written, or is not there yet.

A command that only reads makes no database, and leaves one on a share as it is. The vectors of the
library's descriptions, seconds of work, are then kept in a file of the user's cache, which may be
deleted at any time: whatever is wrong with it, the vectors are made again.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

#: Another process holds the file for milliseconds.
_LOCK_TIMEOUT_S = 1.0


class VectorCache:
    """A file of vectors by model and content hash."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened or made yet."""
        self._path = path

    def read(self, model: str, hashes: Sequence[str]) -> dict[str, bytes]:
        """The vectors that are kept of these texts, by hash."""
        if not self._path.is_file():
            return {}
        try:
            with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)) as connection:
                rows = connection.execute(
                    """
                    select content_hash, vector from vectors
                    where model = ? and content_hash in (select value from json_each(?))
                    """,
                    [model, json.dumps(hashes)],
                )
                return dict(rows.fetchall())
        except sqlite3.Error:
            return {}

    def write(self, model: str, vectors: Mapping[str, bytes]) -> None:
        """Keep vectors, if that can be done."""
        with suppress(sqlite3.Error, OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_LOCK_TIMEOUT_S)) as connection:
                connection.execute(
                    """
                    create table if not exists vectors (
                        model text not null,
                        content_hash text not null,
                        vector blob not null,
                        primary key (model, content_hash)
                    ) without rowid
                    """
                )
                connection.executemany(
                    "insert or ignore into vectors (model, content_hash, vector) values (?, ?, ?)",
                    [(model, key, vector) for key, vector in vectors.items()],
                )
                connection.commit()
