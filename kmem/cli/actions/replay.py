"""`kmem runs replay`: walk a finished run again from what was recorded."""

from pathlib import Path

from kmem.cli.display.run import RunDisplay
from kmem.errors import OutputError
from kmem.memory.store import Memory
from kmem.plugins import Registry
from kmem.records import Run
from kmem.run.directory import RunDirectory
from kmem.run.replay import replay_run


def walk_again(run: Run, place: Path, registry: Registry, memory: Memory) -> list[str]:
    """Replay a run into a directory, with a live display, and return what differs."""
    if place.resolve() == Path(run.out_dir):
        raise OutputError(f"Directory {place} is that of the run itself; choose another with --out")
    with RunDirectory(place).work(run), RunDisplay(run) as show:
        return replay_run(run, place, registry, memory, show)
