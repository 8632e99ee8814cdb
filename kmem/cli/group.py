"""The group of all commands: an error is one line, and a command's module is loaded when asked for.

`LazyCommand` stands in the group for a command of another module. The group lists, completes and
suggests it by its name and first sentence; the module is imported when the command's own arguments
are parsed, which is also what its `--help` and the completion of its options begin with.
"""

import importlib
from typing import Any

import click

from kmem.cli.exit_codes import EXIT_INTERRUPTED
from kmem.errors import KmemError


class Group(click.Group):
    """Prints every KmemError as one line and exits 1, so that no command needs its own handler.

    An interrupt is a line too, with exit code 130; a command that can be resumed says how itself.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KmemError as ex:
            raise click.ClickException(str(ex)) from ex
        except KeyboardInterrupt:
            click.echo("\nInterrupted", err=True)
            raise SystemExit(EXIT_INTERRUPTED) from None


class LazyCommand(click.Command):
    """A command that lists cheaply and is loaded when it is used.

    Args:
        name: of the command.
        module: dotted name of the module that defines the command.
        summary: first sentence of the command's help.
        function: name of its object in the module, where that is not the command's own.
    """

    def __init__(self, name: str, module: str, summary: str, function: str = "") -> None:
        super().__init__(name, help=summary)
        self.module = module
        self._function = function or name

    def load(self) -> click.Command:
        """The command itself."""
        return getattr(importlib.import_module(self.module), self._function)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """A context of the command itself: what is parsed, invoked and completed from here on."""
        return self.load().make_context(info_name, args, parent, **extra)
