"""Writes norms, whatever dimensions a row covers.

That is the statistics of a row and the row divided by them.
"""

from kmem.codegen.rows.recipe import RowRecipe

_OPERATORS = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "l1_norm",
    "l2_norm",
    "frobenius_norm",
    "vector_norm",
    "sum",
    "mean",
    "adaptive_pool",
    "variance",
)
RECIPE = RowRecipe("norm", _OPERATORS, element_output=True)
