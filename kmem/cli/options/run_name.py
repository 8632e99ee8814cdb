"""How a command is told which run: by its id, or the beginning of that, or by its directory."""

from pathlib import Path

import click

from kmem.run.directory import owner_of


class RunName(click.ParamType):
    """The id of a run whose directory is given; what is no run's directory stays as it is."""

    name = "run"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return owner_of(Path(value)) or value


#: For `click.argument`.
RUN_NAME = RunName()
