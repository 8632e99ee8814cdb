"""How a command is told which run: by its id, its directory, or the name of its problem."""

from pathlib import Path

import click

from kmem.memory.store import Memory
from kmem.run.directory import owner_of

#: What a run on a whole model, or at several shapes, leaves: such a run has no id.
_OF_SEVERAL_RUNS = ("model.json", "shapes.json")


class RunName(click.ParamType):
    """The id of a run whose directory is given, or of the latest run of a problem; else the word.

    A word that an id begins with is no problem's name. Which run is the latest is said on stderr.
    """

    name = "run"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        owner = owner_of(Path(value))
        if owner is not None or holds_several_runs(Path(value)):
            return owner or value
        with Memory.to_read() as memory:
            if memory.runs.has_prefix(value):
                return value
            found = memory.run_entries.lines(problem=value)  # newest first
        if not found:
            return value
        of = "its only run" if len(found) == 1 else f"the latest of its {len(found)} runs"
        click.echo(f"{value} is a problem: taking {of}, {found[0].id}", err=True)
        return found[0].id


def holds_several_runs(root: Path) -> bool:
    """Whether this is the directory of a run on a whole model, or at several shapes."""
    return any((root / name).is_file() for name in _OF_SEVERAL_RUNS)


#: For `click.argument`.
RUN_NAME = RunName()
