"""Writes losses with a term per element and its mean or sum: partial sums by many programs, then
one that combines them.
"""

from kmem.codegen.losses import ELEMENT_LOSSES
from kmem.codegen.row_recipe import RowRecipe

RECIPE = RowRecipe("loss", ("loss",), element_output=False, targets=ELEMENT_LOSSES)
