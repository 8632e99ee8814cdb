"""Writes products of one operand, each with what follows it, in one launch.

That is what tile-matmul writes, whose columns are those of all weights one after the other.
"""

from kmem.codegen.products.shared_sites import find_shares
from kmem.codegen.products.tiled_recipe import TiledProducts

RECIPE = TiledProducts(find_shares)
