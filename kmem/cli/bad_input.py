"""A file that cannot be judged: one line and exit code 2, as for any other wrong argument."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from kmem.cli.exit_codes import EXIT_BAD_INPUT
from kmem.errors import BundleError, CaseError, ProblemError, TargetError


class BadInput(click.ClickException):
    """A file that cannot be judged at all."""

    exit_code = EXIT_BAD_INPUT


class OneLineCommand(click.Command):
    """Says what is wrong with its arguments in one line, as it does with files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as ex:
            raise BadInput(ex.format_message()) from ex


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn the errors of files that cannot be judged into BadInput."""
    try:
        yield
    except (CaseError, BundleError, ProblemError, TargetError) as ex:
        raise BadInput(str(ex)) from ex
