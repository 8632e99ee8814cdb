"""Writes cosine similarity and triplet margin loss.

Every sum that a row needs comes from one pass over its operands.
"""

from kmem.codegen.rows.recipe import RowRecipe
from kmem.problem.operators.row import Grain

RECIPE = RowRecipe("similarity", ("loss",), element_output=False, grain=Grain.FEATURES)
