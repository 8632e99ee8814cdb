"""Writes reductions: a loop per row, or several programs per row and a combining kernel."""

from kmem.codegen.rows.recipe import RowRecipe

_OPERATORS = (
    "sum",
    "mean",
    "adaptive_pool",
    "max",
    "min",
    "prod",
    "argmax",
    "argmin",
    "variance",
    "logsumexp",
    "vector_norm",
)
RECIPE = RowRecipe("reduce", _OPERATORS, element_output=False)
