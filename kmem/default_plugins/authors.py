"""The built-in authors of kernels: the recipe engine, and language models."""

from collections.abc import Callable

from kmem.hookspecs import hookimpl
from kmem.interfaces import Author


@hookimpl
def register_authors(register: Callable[[Author], None]) -> None:
    from kmem.explore.models.author import LlmAuthor
    from kmem.explore.recipes.author import RecipeAuthor

    register(RecipeAuthor())
    register(LlmAuthor())
