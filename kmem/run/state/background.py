"""What models are told beside the run's attempts, kept so that every prompt can be written again.

Times of baselines come in while a run goes on, and memory learns: what a round was told is a record
of its own, from which a resumed or replayed run writes the same prompts.
"""

from collections.abc import Callable
from pathlib import Path

from kmem.records import Background
from kmem.run.directory import RunDirectory
from kmem.serialize import from_json, to_json


def keep_background(
    directory: RunDirectory, run_id: str, moment: str, now: Callable[[], Background]
) -> Background:
    """What was known at a moment of a run (its start, or a round), found out once.

    Args:
        now: finds it out, if the run has not been at that moment before.
    """
    name = f"{_prefix(run_id)}{moment}.json"
    place = directory.root / name
    if place.is_file():
        return from_json(Background, place.read_text(encoding="utf-8"))
    found = now()
    directory.write_text(name, to_json(found) + "\n")
    return found


def copy_backgrounds(run_id: str, source: Path, target: RunDirectory) -> None:
    """Into another directory of the same run, for a replay."""
    for place in sorted(source.glob(f"{_prefix(run_id)}*.json")):
        target.write_text(place.name, place.read_text(encoding="utf-8"))


def _prefix(run_id: str) -> str:
    return f"background-{run_id}-"
