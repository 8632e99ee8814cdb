"""Writes products whose operands are made of something else while they are read.

That is what tile-matmul writes where the nodes before an operand run by themselves. Products that
share such an operand are written in one launch, or with the gate that is made of two.
"""

from kmem.codegen.products.joined_sites import find_gates, join_sites
from kmem.codegen.products.shared_sites import find_shares
from kmem.codegen.products.sites import find_products
from kmem.codegen.products.tiled_recipe import TiledProducts
from kmem.problem.graph import OpGraph
from kmem.recipes import Site
from kmem.records import Contract


def find_opened(graph: OpGraph, contract: Contract) -> list[Site]:
    """Products with an operand that is made while it is read; of one that several share, together.

    Packed weights are unpacked by each product for itself.
    """
    apart = find_products(graph, contract, opens=True)
    packed = {name for site in apart if site.detail.unpacks for name in site.nodes}
    gates = find_gates(graph, contract, opens=True)
    shares = find_shares(graph, contract, gates, opens=True)
    joined = [site for site in (*gates, *shares) if packed.isdisjoint(site.nodes)]
    return join_sites(graph, apart, joined)


RECIPE = TiledProducts(find_opened)
