"""The built-in authors: the user's own kernel, the recipe engine, and language models."""

from collections.abc import Callable

from kmem import hookimpl
from kmem.explore.given.author import GivenAuthor
from kmem.explore.models.author import LlmAuthor
from kmem.explore.recipes.author import RecipeAuthor
from kmem.interfaces import Author


@hookimpl
def register_authors(register: Callable[[Author], None]) -> None:
    register(GivenAuthor())
    register(RecipeAuthor())
    register(LlmAuthor())
