"""`kmem runs replay`: walk a finished run again from what was recorded."""

from pathlib import Path

from kmem.cli.display.run import RunDisplay
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Run
from kmem.run.replay import replay_run


def walk_again(run: Run, place: Path, registry: Registry, memory: Memory) -> list[str]:
    """Replay a run into a directory, with a live display, and return what differs."""
    with RunDisplay(run) as show:
        return replay_run(run, place, registry, memory, show)
