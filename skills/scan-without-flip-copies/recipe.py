"""Writes scans with flips, slices or paddings around them as one pass.

The order is reversed, loads are shifted, and ends are masked.
"""

from kmem.codegen.scans.recipe import ScanRecipe

RECIPE = ScanRecipe(folds_layout=True)
