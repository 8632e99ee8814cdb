"""Writes two products of one operand and what is made of both in one kernel.

That is what tile-matmul writes, whose columns are those of both weights in turns.
"""

from kmem.codegen.products.joined_sites import find_gates
from kmem.codegen.products.tiled_recipe import TiledProducts

RECIPE = TiledProducts(find_gates)
