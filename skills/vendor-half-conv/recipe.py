"""Writes convolutions as vendor calls in half precision, with a kernel before and one behind.

A labelled candidate: `--purity triton` does not see it. finding.py and tails.py read a graph;
vendor.py has what is computed; kernels.py, moments.py, phases.py and lines.py the kernels;
launcher.py what launches them, with staging.py, behind.py and chains.py; tuning.py the knobs and
times, with work.py.
"""

from collections.abc import Sequence

from kmem.codegen.convolutions.convolution import operator_of
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import OpGraph
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import Contract, Device, Purity

from .finding import find_vendor_convolutions
from .launcher import emit_vendor
from .settings import read_knobs
from .tuning import ROLES, vendor_cost_ms, vendor_space
from .vendor import Found


class VendorHalfConv(Recipe):
    operators = ("conv", "pointwise_conv", "conv_transpose")
    roles = ROLES

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        if contract.purity is Purity.TRITON:
            return []
        found = find_vendor_convolutions(graph, contract.precision)
        return [_site(graph, each) for each in found]

    def space(self, site: Site, device: Device) -> Space:
        return vendor_space(site.detail)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return vendor_cost_ms(site.detail, settings, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_vendor(site.detail, read_knobs(site.detail, settings))


def _site(graph: OpGraph, found: Found) -> Site:
    inputs = kept_operands(graph, found.inputs)
    spec, detail = graph.spec(found.result), found.detail
    return Site(
        found.anchor,
        "conv_transpose" if detail.is_transposed else operator_of(detail.base),
        found.nodes,
        inputs,
        (Operand(found.result, spec),),
        detail,
        sum(operand.spec.bytes for operand in inputs) + spec.bytes,
        sum(link.flops for link in detail.links),
        ("library",),
    )


RECIPE = VendorHalfConv()
