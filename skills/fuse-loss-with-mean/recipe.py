"""Writes losses with a term per element and its mean or sum: partial sums by many programs, then
one that combines them.
"""

from kmem.codegen.row_recipe import RowRecipe
from kmem.problem.operators.row import Grain

RECIPE = RowRecipe("loss", ("loss",), element_output=False, grain=Grain.ELEMENTS)
