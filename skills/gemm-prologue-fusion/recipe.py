"""Writes products whose operands are made of something else while they are read.

That is what tile-matmul writes where the nodes before an operand run by themselves.
"""

from kmem.codegen.tiled_product import TiledProducts

RECIPE = TiledProducts(opens=True)
