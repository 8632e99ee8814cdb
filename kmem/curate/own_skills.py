"""Which skill directories were made here, with `kmem skills new`: their code is the user's own.

The mark lies beside the database, where no archive can put one, and names a directory by its place
and by its identity on the disk: another directory moved to that place is not the one that was made.
"""

import json
import os
from pathlib import Path

from kmem.errors import OutputError
from kmem.memory.location import added_skills_root


def mark_as_own(directory: Path, db_path: Path) -> None:
    """Remember that a directory was made here.

    Raises OutputError if the place beside the database cannot be written.
    """
    file = _marks_file(db_path)
    marks = {**_read_marks(db_path), str(directory.resolve()): _identity(directory)}
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(marks, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, file)
    except OSError as ex:
        raise OutputError(
            f"{file} cannot be written ({ex.strerror}); choose another database with KMEM_DB"
        ) from ex


def is_own(directory: Path, db_path: Path) -> bool:
    """Whether a directory was made here and is still the same one."""
    mark = _read_marks(db_path).get(str(directory.resolve()))
    return mark is not None and directory.is_dir() and mark == _identity(directory)


def _identity(directory: Path) -> list[int]:
    status = directory.stat()
    return [status.st_dev, status.st_ino]


def _read_marks(db_path: Path) -> dict[str, list[int]]:
    try:
        marks = json.loads(_marks_file(db_path).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or damaged: then nothing is trusted
        return {}
    return marks if isinstance(marks, dict) else {}


def _marks_file(db_path: Path) -> Path:
    # skills added beside the database have names without dots
    return added_skills_root(db_path) / ".made-here.json"
