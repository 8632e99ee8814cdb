"""The options of a command as words again, for the same command elsewhere."""

from collections.abc import Collection

import click
from click.core import ParameterSource


def words_of(context: click.Context, leave_out: Collection[str]) -> list[str]:
    """The options that were given, as words; those of the environment too, defaults not.

    Args:
        leave_out: names of parameters.
    """
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) in (
            ParameterSource.COMMANDLINE,
            ParameterSource.ENVIRONMENT,
        )
        if not isinstance(parameter, click.Option) or name in leave_out or not given:
            continue
        value = context.params[name]
        if parameter.is_flag:
            names = parameter.opts if value else parameter.secondary_opts
            words += names[:1]
            continue
        if isinstance(value, tuple) and not parameter.multiple:
            value = ",".join(map(str, value))  # a list in one word, read by the option's callback
        for each in value if parameter.multiple else (value,):
            words += [parameter.opts[0], str(each)]
    return words
