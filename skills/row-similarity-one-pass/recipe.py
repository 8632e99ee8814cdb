"""Writes cosine similarity and triplet margin loss: every sum a row needs in one pass over its
operands.
"""

from kmem.codegen.losses import SIMILARITIES
from kmem.codegen.row_recipe import RowRecipe

RECIPE = RowRecipe(
    "similarity",
    ("loss",),
    element_output=False,
    targets=(*SIMILARITIES, "aten.triplet_margin_loss.default"),
)
