"""A finished run, found by its directory or its id."""

import json
from dataclasses import replace
from pathlib import Path

from kmem.errors import MemoryStoreError, OutputError
from kmem.memory.store import Memory
from kmem.records import Run, RunResult
from kmem.run.report.result import Result
from kmem.serialize import from_data


def load_run(run: str | Path) -> Result:
    """A finished run.

    Args:
        run: its directory, or its id or the beginning of one.

    Raises OutputError: if there is no such run, or it has not finished.
    """
    place = Path(run)
    if place.is_dir():
        return _from_directory(place)
    return _from_memory(str(run))


def _from_directory(place: Path) -> Result:
    try:
        run = from_data(Run, json.loads((place / "run.json").read_text(encoding="utf-8")))
        text = (place / "result.json").read_text(encoding="utf-8")
        outcome = from_data(RunResult, json.loads(text))
    except (OSError, ValueError) as ex:
        raise OutputError(
            f"{place} holds no finished run ({str(ex).splitlines()[0]}); give the directory of "
            "one, or `kmem runs resume` it"
        ) from ex
    moved = str(place.resolve())
    return Result(replace(run, out_dir=moved), outcome)


def _from_memory(run_id: str) -> Result:
    try:
        with Memory.to_read() as memory:
            run = memory.runs.get(run_id)
            entry = memory.run_entries.one(run.id)
    except MemoryStoreError as ex:
        raise OutputError(
            f"There is neither a directory nor a run {run_id}; `kmem runs list` shows runs ({ex})"
        ) from ex
    if entry.result is None:
        raise OutputError(
            f"Run {run.id} is {entry.state.value} and has no result; `kmem runs resume {run.id}`"
        )
    return Result(run, entry.result)
