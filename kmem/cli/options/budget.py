"""How many rounds and minutes the search for one problem may take.

Each function gives a field for a record of options (see records.py).
"""

from typing import Any

import click

from kmem.cli.options.records import option


def rounds_option(text: str) -> Any:
    """`--rounds`, with the help of the command."""
    return option("--rounds", type=click.IntRange(min=0), default=4, show_default=True, help=text)


def minutes_option(name: str, text: str) -> Any:
    """The minutes of one problem, under the command's own name for them."""
    return option(
        name,
        type=click.FloatRange(min=0, min_open=True),
        default=3.0,
        show_default=True,
        help=f"{text}; baselines that take longer are apart, and without a GPU the last proof, in "
        "the interpreter, is not cut off.",
    )
