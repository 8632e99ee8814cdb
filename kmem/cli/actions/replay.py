"""`kmem runs replay`: walk a finished run again from what was recorded."""

from datetime import UTC, datetime
from pathlib import Path

from kmem.cli.display.run import RunDisplay
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Run
from kmem.run.replay import replay_run


def walk_again(run_id: str, out: Path | None, registry: Registry) -> tuple[Run, Path, list[str]]:
    """Replay a run, with a live display.

    Returns: the run, the directory of the second walk, and what differs.
    """
    with Memory() as memory:
        run = memory.runs.get(run_id)
        place = out or Path("runs") / f"replay-{run.id}-{datetime.now(UTC):%H%M%S}"
        with RunDisplay(run) as show:
            differences = replay_run(run, place, registry, memory, show)
    return run, place, differences
