"""Options of a command as one frozen record, of which each field names the option that gives it.

    @dataclass(frozen=True, slots=True)
    class SearchOptions:
        arch: str | None = option("--arch", help="Only skills for this architecture.")
        limit: int = option("--limit", default=10, help="How many skills to print at most.")

    @click.command()
    @takes(SearchOptions)
    def search(options: SearchOptions) -> None: ...

A field may itself be a record of options (`nested`). The help lists options in the order of the
fields. A field's name is the name of its parameter in click, so that no two fields of a command may
have one name.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import Field, field, fields
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTION, _RECORD = "option", "record"


def option(*names: str, **settings: Any) -> Any:
    """A field that one option gives.

    Args:
        names: of the option, such as "--arch".
        settings: those of click.option.
    """
    return field(metadata={_OPTION: (names, settings)})


def nested(record: type) -> Any:
    """A field that is a record of options itself."""
    return field(metadata={_RECORD: record})


def takes(record: type) -> Callable[[Command], Command]:
    """Add the options of a record to a command, which gets the record as its `options`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(*arguments: Any, **values: Any) -> Any:
            values["options"] = _collect(record, values)
            return command(*arguments, **values)

        for entry in reversed([*_option_fields(record)]):
            names, settings = entry.metadata[_OPTION]
            call = click.option(*names, entry.name, **settings)(call)
        return call

    return decorate


def _option_fields(record: type) -> Iterator[Field]:
    for entry in fields(record):
        if _RECORD in entry.metadata:
            yield from _option_fields(entry.metadata[_RECORD])
        else:
            yield entry


def _collect(record: type, values: dict[str, Any]) -> Any:
    """Take a record's values out of those that click parsed."""
    return record(
        **{
            entry.name: (
                _collect(entry.metadata[_RECORD], values)
                if _RECORD in entry.metadata
                else values.pop(entry.name)
            )
            for entry in fields(record)
        }
    )
