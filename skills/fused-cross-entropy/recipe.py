"""Writes cross entropy over class indices.

Each row's logits are read once, then one program sums the rows.
"""

from kmem.codegen.rows.recipe import RowRecipe
from kmem.problem.operators.row import Grain

RECIPE = RowRecipe("cross_entropy", ("loss",), element_output=False, grain=Grain.CLASSES)
