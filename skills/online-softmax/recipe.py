"""Writes softmax and log-softmax of any row length, and what reduces such a row again.

A row is kept in registers, read online over a loop, or shared by several programs.
"""

from kmem.codegen.rows.recipe import RowRecipe

RECIPE = RowRecipe(
    "softmax",
    ("softmax", "log_softmax", "logsumexp", "max"),
    element_output=True,
    reduced_again=("softmax", "log_softmax"),
)
