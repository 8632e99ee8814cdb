"""Writes products whose operands are made of something else while they are read.

That is what tile-matmul writes where the nodes before an operand run by themselves.
"""

from functools import partial

from kmem.codegen.products.sites import find_products
from kmem.codegen.products.tiled_recipe import TiledProducts

RECIPE = TiledProducts(partial(find_products, opens=True))
