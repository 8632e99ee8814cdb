"""Writes running sums and products over any dimension.

A program takes a row with a carry, or a row is split between programs in two launches.
"""

from kmem.codegen.scans.recipe import ScanRecipe

RECIPE = ScanRecipe(folds_layout=False)
