"""Writes batch norm in training mode.

That is statistics of each channel, the normalised tensor, and the running statistics that move
along.
"""

from kmem.codegen.rows.recipe import RowRecipe

RECIPE = RowRecipe("batch_norm", ("batch_norm",), element_output=True)
