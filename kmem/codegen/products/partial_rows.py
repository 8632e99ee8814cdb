"""Products of which one value for each row is wanted: their tiles leave parts of the rows.

The states of 16 columns are 16 or 8 times fewer numbers (chains/partial.py says what is covered).
A softmax or norm behind a product is none: it is a kernel of rows, which keeps a row in the
registers of one program, or of several that share it, and reads it once. With states it would read
no less: of a column in fp32, 4 bytes are written by the product, 4 read and 4 written by the rows'
kernel, and two states of every 16 columns add half a byte written and half a byte read (by
arithmetic alone).
"""

from collections.abc import Sequence
from dataclasses import replace

from kmem.codegen.chains.partial import find_partial
from kmem.codegen.products.contraction import Product
from kmem.codegen.products.sites import find_products
from kmem.problem.graph import OpGraph
from kmem.recipes import Site
from kmem.records import Contract

#: Columns of a tile that leave one part: the narrowest tile has as many, others a multiple.
_WINDOW = 16


def find_reduced(graph: OpGraph, contract: Contract) -> list[Site]:
    """The products of which one value for each row is wanted."""
    return reduce_sites(graph, find_products(graph, contract))


def reduce_sites(graph: OpGraph, sites: Sequence[Site]) -> list[Site]:
    """The sites of products whose rows are reduced next, with the reductions."""
    found = []
    for site in sites:
        others = {name for other in sites if other is not site for name in other.nodes}
        reduced = _reduce(graph, site)
        if reduced is not None and others.isdisjoint(reduced.nodes):
            found.append(reduced)
    return found


def _reduce(graph: OpGraph, site: Site) -> Site | None:
    product: Product = site.detail
    steps = _row_steps(product)
    if steps is None or product.triangle != "none" or product.n.out != 1:
        return None
    found = find_partial(graph, site, product.n.size, product.epilogue, _WINDOW)
    if found is None:
        return None
    elements = found.finish.row_elements
    detail = replace(
        product,
        m=replace(product.m, out=steps[2] * elements),
        batch=tuple(
            replace(axis, out=step * elements)
            for axis, step in zip(product.batch, steps[:2], strict=True)
        ),
        out=found.output.spec,
        epilogue=found.epilogue,
        finish=found.finish,
    )
    (made,) = site.outputs
    return replace(
        site,
        nodes=(*site.nodes, *found.nodes),
        outputs=(found.output,),
        detail=detail,
        bytes=site.bytes - made.spec.bytes + found.output.spec.bytes,
    )


def _row_steps(product: Product) -> list[int] | None:
    """Rows in memory between neighbours along both batch axes and m; None if rows have gaps."""
    steps = [axis.out for axis in (*product.batch, product.m)]
    whole = all(step % product.n.size == 0 for step in steps)
    return [step // product.n.size for step in steps] if whole else None
