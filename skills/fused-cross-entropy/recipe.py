"""Writes cross entropy over class indices: one read of the logits per row, then one program that
sums the rows.
"""

from kmem.codegen.row_recipe import RowRecipe
from kmem.problem.operators.row import Grain

RECIPE = RowRecipe("cross_entropy", ("loss",), element_output=False, grain=Grain.CLASSES)
