"""The diary of a run: what it said and when, a line each, for whoever looks at it from outside.

Whoever reads while it is written sees whole lines
alone; a kill loses at most the one being written.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import OutputError
from kmem.run.directory import DIARY
from kmem.run.state.progress import Event
from kmem.serialize import from_json, to_json

#: How much of the end of the file is read: about a hundred lines.
_READ_BYTES = 16_384
#: A sentence of a plugin or a model may be a book.
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what the run was at, from that moment on."""

    at: str  # ISO 8601, UTC
    stage: str
    text: str
    # of the run's minutes, negative once they are over; None where it has no clock
    seconds_left: float | None = None


def write_entry(root: Path, stage: str, text: str, seconds_left: float = math.inf) -> None:
    """Add a line to the diary of the run in a directory.

    Raises OutputError if it cannot be written.
    """
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    left = round(seconds_left, 1) if math.isfinite(seconds_left) else None
    line = to_json(Entry(at, stage, text[:_LONGEST], left)).replace("\n", " ")
    place = root / DIARY
    try:
        with open(place, "ab") as file:
            file.write(f"{line}\n".encode())
    except OSError as ex:
        raise OutputError(f"Cannot write {place}: {ex.strerror or ex}; free some space") from ex


def noted(root: Path, show: Callable[[Event], None]) -> Callable[[Event], None]:
    """What shows events, with each of them written into the diary first."""

    def note(event: Event) -> None:
        write_entry(root, event.stage, event.text, event.seconds_left)
        show(event)

    return note


def read_diary(root: Path, most: int) -> list[Entry]:
    """The last entries, oldest first; none where there is no diary. Damaged lines are left out."""
    try:
        with open(root / DIARY, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _READ_BYTES))
            lines = file.read().decode("utf-8", errors="replace").split("\n")
    except OSError:
        return []
    found: list[Entry] = []
    for line in lines[:-1]:  # the last one has no end yet, or is empty
        try:
            found.append(from_json(Entry, line))
        except ValueError:
            continue
    return found[-most:]


def diary_length(root: Path) -> int:
    """How many bytes the diary has: it grows with every entry."""
    try:
        return os.stat(root / DIARY).st_size
    except OSError:
        return 0
