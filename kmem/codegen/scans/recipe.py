"""The recipe class of the scan skills: from a found scan to a Site, its space, cost and text."""

from collections.abc import Sequence

from kmem.codegen.scans.launches import emit_scan
from kmem.codegen.scans.matching import FoundScan, find_scans
from kmem.codegen.scans.scan import Scan
from kmem.codegen.scans.space import scan_cost_ms, scan_space
from kmem.problem.graph import OpGraph
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

_OPERATORS = {"sum": "cumsum", "prod": "cumprod", "max": "cummax", "min": "cummax"}
#: Positions are counted in 32 bits, with room for one tile beyond the end.
_MAX_LENGTH = 2**31 - 2**17


class ScanRecipe(Recipe):
    """Running sums, products and extremes over any dimension, with pointwise chains around them.

    Args: folds_layout: True for scans with flips, slices or paddings around them, False for those
        without.
    """

    operators = tuple(dict.fromkeys(_OPERATORS.values()))
    roles = {
        "STRATEGY": (Role("split", (("carry",), ("split",))),),
        "BK": (Role("rows"),),
        "BR": (Role("tile"),),
        "SPLIT": (Role("split"),),
        "num_warps": (Role("warps"),),
    }

    def __init__(self, folds_layout: bool) -> None:
        self.folds_layout = folds_layout

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [
            _site(found)
            for found in find_scans(graph)
            if found.scan.folds_layout is self.folds_layout and found.scan.length < _MAX_LENGTH
        ]

    def space(self, site: Site, device: Device) -> Space:
        return scan_space(_scan(site), device)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return scan_cost_ms(_scan(site), settings, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_scan(_scan(site), settings)


def _site(found: FoundScan) -> Site:
    scan = found.scan
    flops = float(scan.rows * scan.length * (1 + len(scan.before) + len(scan.after)))
    return Site(
        found.anchor,
        _OPERATORS[scan.kind],
        found.nodes,
        scan.inputs,
        (scan.output,),
        scan,
        scan.bytes,
        flops,
    )


def _scan(site: Site) -> Scan:
    assert isinstance(site.detail, Scan)
    return site.detail
