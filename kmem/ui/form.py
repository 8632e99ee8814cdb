"""The form that starts a run: a field for each option of `kmem optimize`, as the command has them.

What is offered, its help, its default and whether a value is allowed all come from the command
itself: there is no second list of options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

#: Options that a page has no use for: what it prints, and where it goes.
_LEFT_OUT = {"as_json", "out", "help", "ui"}
#: What most people set comes first; the rest is behind one more click.
_FIRST = ("minutes", "rounds", "target", "precision", "author", "models")


@dataclass(frozen=True, slots=True)
class Field:
    """One option as a field of the form."""

    name: str
    flag: str
    off_flag: str  # of an option that is on or off, what says no; empty without one
    help: str
    kind: str  # "choice", "number", "switch", "text"
    default: str
    choices: tuple[str, ...] = ()
    several: bool = False  # several values, with commas between them


def fields_of(command: click.Command) -> list[Field]:
    """The fields for a command, those set most often first."""
    options = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and parameter.name not in _LEFT_OUT
        and not parameter.hidden
    ]
    made = [_field(option) for option in options]
    first = [field for name in _FIRST for field in made if field.name == name]
    return [*first, *(field for field in made if field not in first)]


def is_first(field: Field) -> bool:
    """Whether a field is shown without a further click."""
    return field.name in _FIRST


def _field(option: click.Option) -> Field:
    kind, choices = "text", ()
    if option.is_flag:
        kind = "switch"
    elif isinstance(option.type, click.Choice):
        kind, choices = "choice", tuple(str(choice) for choice in option.type.choices)
    elif isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        kind = "number"
    return Field(
        str(option.name),
        max(option.opts, key=len),
        max(option.secondary_opts, key=len, default=""),
        option.help or "",
        kind,
        _default(option),
        choices,
        option.multiple,
    )


def _default(option: click.Option) -> str:
    default = option.default
    if default is None or callable(default) or not isinstance(default, str | int | float | tuple):
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    if isinstance(default, bool):
        return "on" if default else ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def command_words(fields: Sequence[Field], form: Mapping[str, str]) -> list[str]:
    """The options of a filled form as words of a command line; what is as by default is left out.

    A value never becomes an option of its own: it stands behind `=`.
    """
    words: list[str] = []
    for field in fields:
        value = form.get(f"option-{field.name}", "").strip()
        if value == field.default:
            continue
        if field.kind == "switch":
            flag = field.flag if value else field.off_flag
            words += [flag] if flag else []
        elif field.several:
            words += [f"{field.flag}={one.strip()}" for one in value.split(",") if one.strip()]
        elif value:
            words.append(f"{field.flag}={value}")
    return words


def find_fault(command: click.Command, words: Sequence[str]) -> str:
    """What the command says against its words; empty if it would run."""
    try:
        command.make_context(str(command.name), list(words))
    except click.ClickException as ex:
        return ex.format_message()
    return ""
