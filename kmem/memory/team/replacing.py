"""An exported file written beside the one it replaces, and never in the place of more than it has.

A full disk or a kill leaves the old file. A file that is no export, or that holds records which the
new one lacks, stays unless its owner insists.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kmem.errors import OutputError
from kmem.memory.team.lines import is_export, record_hashes

_INSIST = "export to another path, or say --force"


@contextmanager
def replace_export(path: Path, *, force: bool = False) -> Iterator[TextIO]:
    """A file to write lines of an export to, which takes the place of `path` at the end.

    Args:
        force: whatever `path` is now.

    Raises:
        OutputError: if it cannot be written, or something would be lost.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if not force:
            _refuse_no_export(path)
        with partial.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force:
            _refuse_loss(path, partial)
        os.replace(partial, path)
    except OSError as ex:
        raise OutputError(
            f"File {path} cannot be written ({ex.strerror}); export to another path"
        ) from ex
    finally:
        partial.unlink(missing_ok=True)


def _refuse_no_export(path: Path) -> None:
    """Refuse what is there if it is none."""
    if path.exists() and not is_export(path):
        raise OutputError(f"File {path} is no export of kmem and would be overwritten; {_INSIST}")


def _refuse_loss(path: Path, new: Path) -> None:
    """Refuse to put `new` in the place of an export that holds more."""
    if not path.exists():
        return
    lost = record_hashes(path) - record_hashes(new)
    if lost:
        raise OutputError(
            f"File {path} holds {len(lost)} records that this memory lacks and that would be lost; "
            f"`kmem memory import` it first, {_INSIST}"
        )
    if new.stat().st_size < path.stat().st_size:
        raise OutputError(
            f"File {path} says more of the same records, such as the texts of kernels, which would "
            f"be lost; {_INSIST}"
        )
