"""Writes products with one dot per tile."""

from kmem.codegen.tiled_product import TiledProducts

RECIPE = TiledProducts()
