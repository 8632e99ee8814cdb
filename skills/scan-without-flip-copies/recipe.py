"""Writes scans with flips, slices or paddings around them as one pass: reversed order, shifted
loads, masked ends.
"""

from kmem.codegen.scan_recipe import ScanRecipe

RECIPE = ScanRecipe(folds_layout=True)
