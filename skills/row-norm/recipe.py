"""Writes norms, whatever dimensions a row covers.

That is the statistics of a row and the row divided by them, or what a reduction leaves of that.
"""

from kmem.codegen.rows.recipe import RowRecipe

#: What reduces a row of these again, as a sum over a layer norm, belongs to the same kernel.
_NORMS = (
    "layer_norm",
    "rms_norm",
    "group_norm",
    "instance_norm",
    "l1_norm",
    "l2_norm",
    "frobenius_norm",
)
_OPERATORS = (
    *_NORMS,
    "vector_norm",
    "sum",
    "mean",
    "adaptive_pool",
    "variance",
)
RECIPE = RowRecipe("norm", _OPERATORS, element_output=True, reduced_again=_NORMS)
