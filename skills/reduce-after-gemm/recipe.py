"""Writes products of which only one value for each row is wanted: their tiles leave parts of it."""

from kmem.codegen.products.partial_rows import find_reduced
from kmem.codegen.products.tiled_recipe import TiledProducts

RECIPE = TiledProducts(find_reduced)
