"""Write a problem file from a description in words, show it, and say what a run would make of it.

The path goes to stdout, everything for people to stderr.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kmem.cli.actions.problem import preview_file, write_new
from kmem.cli.display.problem import describe_preview
from kmem.cli.options.stages import CheckOptions
from kmem.errors import ProblemError
from kmem.plugins import Registry
from kmem.problem.described.reading import Description, read_description
from kmem.problem.described.writing import write_problem_file
from kmem.records import ModelChoice
from kmem.run.setup.preview import Preview
from kmem.run.setup.worded_problem import ask_for_problem, check_problem_text

#: Words of a description that make the name of its file.
_WORDS_IN_NAME = 4


def describe_problem(
    text: str, out: Path | None, models: Sequence[ModelChoice], registry: Registry
) -> None:
    """Write the problem file of a description.

    Raises:
        ProblemError: if the description is not understood, or the file does not hold.
        ProviderError: if a model was given and cannot answer.
        OutputError: if the file is there already, or cannot be written.
    """
    found: list[Preview] = []

    def check(source: str) -> None:
        check_problem_text(
            source,
            lambda file: found.append(
                preview_file(file, CheckOptions(None, "match", None), registry)
            ),
        )

    if models:
        choice = models[0]
        source = ask_for_problem(text, registry.providers[choice.provider], choice, check)
    else:
        source = write_problem_file(_understood(text))
        check(source)
    file = out or Path(f"{_slug(text)}.py")
    write_new(file, source)
    click.echo(source, err=True)
    click.echo(describe_preview(found[-1]), err=True)
    click.echo(f"Read whether it is what you mean, then: kmem optimize {file}", err=True)
    click.echo(str(file))


def _understood(text: str) -> Description:
    """The description with all that a file wants; on a terminal what is missing is asked for."""
    described = read_description(text)
    while described.wants:
        question = described.wants[0]
        if not sys.stdin.isatty():
            raise ProblemError(
                f"The description lacks {'; '.join(described.wants)}. Say it, or let a model write "
                "the file with -m MODEL"
            )
        try:
            described = read_description(
                f"{described.text}, {click.prompt(_as_question(question))}"
            )
        except ProblemError as ex:
            click.echo(str(ex), err=True)
    return described


def _as_question(wanted: str) -> str:
    return f"{wanted[:1].upper()}{wanted[1:]}"


def _slug(text: str) -> str:
    """A file's name: the first words of what is said before any sizes."""
    words = re.findall(r"[a-z][a-z0-9]*", re.sub(r"\w+\s*\[[^]]*\]", " ", text.lower()))
    told = [word for word in words if word not in ("a", "an", "the", "of", "over", "with", "fused")]
    return "_".join(told[:_WORDS_IN_NAME]) or "problem"
