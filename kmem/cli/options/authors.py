"""Who writes kernels, and the language models that they need: --author with -m."""

from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from kmem.cli.options.models import ModelOptions, choose_models
from kmem.cli.options.records import option
from kmem.explore.models.roles import check_models
from kmem.plugins import Registry
from kmem.records import ModelChoice

#: Who writes kernels, by what --author says, in the order in which they seed.
AUTHORS = {"recipes": ("recipes",), "llm": ("llm",), "both": ("recipes", "llm")}


class AuthorOptions(Protocol):
    """The options of a command that runs authors."""

    author: str
    models: ModelOptions


Options = TypeVar("Options", bound=AuthorOptions)


def author_option() -> Any:
    """`--author`."""
    return option(
        "--author",
        type=click.Choice(list(AUTHORS)),
        default="recipes",
        show_default=True,
        help="Who writes kernels: executable skills, language models (needs -m), or both: recipes "
        "seed and models go on.",
    )


def with_author(options: Options) -> Options:
    """The options with the author that a model given alone asks for."""
    source = click.get_current_context().get_parameter_source
    if source("models") is not ParameterSource.COMMANDLINE:
        return options
    if source("author") is not ParameterSource.DEFAULT:
        return options
    click.echo("-m names a language model: --author both", err=True)
    return replace(options, author="both")


def needed_models(registry: Registry, options: AuthorOptions) -> tuple[ModelChoice, ...]:
    """The models that authors need, which can be asked.

    Raises:
        UsageError: if authors and models do not fit.
        ProviderError: if a model could not be asked at all.
    """
    if "llm" not in AUTHORS[options.author]:
        source = click.get_current_context().get_parameter_source("models")
        if source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                "-m names a language model, but --author recipes asks none: add --author llm or "
                "--author both"
            )
        return ()
    if not options.models.models:
        raise click.UsageError(
            f"--author {options.author} needs a language model: give one with -m"
        )
    models = choose_models(options.models, registry.providers)
    check_models(models, registry.providers)
    return models


def author_words(options: AuthorOptions) -> tuple[str, ...]:
    """The words that say the same to a `kmem optimize`; none for recipes alone."""
    if options.author == "recipes":
        return ()
    given = options.models
    pairs = [("--author", options.author)]
    pairs += [("-m", model) for model in given.models]
    pairs += [("--base-url", url) for url in given.base_urls]
    pairs += [("--temperature", text) for text in given.temperatures]
    pairs += [("--effort", text) for text in given.efforts]
    pairs += [("--max-output-tokens", text) for text in given.output_limits]
    return (*chain.from_iterable(pairs), *(("--no-stream",) if given.no_stream else ()))
