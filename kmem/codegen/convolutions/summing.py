"""Reductions over all positions of an image behind a convolution, of which its tiles leave parts.

    F.gelu(self.conv(x)).mean((2, 3))       # the image is never written

A mean over positions, a global pooling, a maximum: where one value of each channel of an image is
wanted, tiles store the states of the reduction over every few of their positions, and one small
kernel finishes them (chains/partial.py). What stands between is written with the tile, as far as it
is the convolution's epilogue anyway, and what follows channel by channel with the last kernel.
"""

from collections.abc import Collection
from dataclasses import replace

from kmem.codegen.chains.partial import find_partial
from kmem.codegen.convolutions.convolution import Convolution, extend_sites
from kmem.codegen.convolutions.launching import copy_ms
from kmem.problem.graph import OpGraph
from kmem.recipes import Site
from kmem.records import Device

#: Positions that leave one part: the smallest tile has as many, others a multiple. A part costs 4
#: bytes, written beside others' and read again, so that few are better.
WINDOW = 32


def sum_sites(graph: OpGraph, sites: Collection[Site]) -> list[Site]:
    """The sites of convolutions, each with the reduction over positions that alone reads it."""
    return extend_sites(sites, lambda site, others: _sum(graph, site, others))


def _sum(graph: OpGraph, site: Site, others: Collection[str]) -> Site | None:
    detail, (made,) = site.detail, site.outputs
    assert isinstance(detail, Convolution)
    is_plain = not (detail.is_closed or detail.is_pooled or detail.norm)
    if not is_plain or not made.spec.is_contiguous:
        return None
    found = find_partial(graph, site, detail.positions, detail.epilogue, WINDOW)
    if found is None or not others.isdisjoint(found.nodes):
        return None
    return replace(
        site,
        nodes=(*site.nodes, *found.nodes),
        outputs=(found.output,),
        detail=replace(detail, out=found.output.spec, epilogue=found.epilogue, finish=found.finish),
        bytes=site.bytes - made.spec.bytes + found.output.spec.bytes,
    )


def sum_cost_ms(detail: Convolution, device: Device) -> float:
    """What parts take, written and read again, and the kernel that finishes them, in ms; 0 where
    there are none.
    """
    if detail.finish is None:
        return 0.0
    moved = 2 * 4 * detail.finish.rows * detail.finish.row_elements
    return copy_ms(moved, device) + device.launch_ms
