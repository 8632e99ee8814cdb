"""Writes products with one dot per tile."""

from kmem.codegen.products.tiled_recipe import TiledProducts

RECIPE = TiledProducts()
