"""The built-in authors: the user's own kernel, the recipe engine, and language models."""

from collections.abc import Callable

from kmem import hookimpl
from kmem.explore.on_demand import AuthorOnDemand
from kmem.interfaces import GIVEN, RECIPES, Author


@hookimpl
def register_authors(register: Callable[[Author], None]) -> None:
    register(AuthorOnDemand(GIVEN, "kmem.explore.given.author", "GivenAuthor"))
    register(AuthorOnDemand(RECIPES, "kmem.explore.recipes.author", "RecipeAuthor"))
    register(AuthorOnDemand("llm", "kmem.explore.models.author", "LlmAuthor"))
