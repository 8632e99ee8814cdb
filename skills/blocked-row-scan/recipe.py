"""Writes running sums and products over any dimension: a program per row with a carry, or a row
split between programs in two launches.
"""

from kmem.codegen.scan_recipe import ScanRecipe

RECIPE = ScanRecipe(folds_layout=False)
