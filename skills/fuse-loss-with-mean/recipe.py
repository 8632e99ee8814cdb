"""Writes losses with a term per element and its mean or sum.

Many programs write partial sums, then one program combines them.
"""

from kmem.codegen.rows.recipe import RowRecipe
from kmem.problem.operators.row import Grain

RECIPE = RowRecipe("loss", ("loss",), element_output=False, grain=Grain.ELEMENTS)
