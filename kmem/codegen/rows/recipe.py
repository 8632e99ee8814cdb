"""The recipe classes of row-wise and pointwise skills: from found regions to sites and text."""

from collections.abc import Sequence

from kmem.codegen.regions.matching import (
    FoundRegion,
    find_pointwise_regions,
    find_row_regions,
    is_supported_dtype,
)
from kmem.codegen.regions.naming import without_counts
from kmem.codegen.regions.region import Region
from kmem.codegen.rows.cost import row_cost_ms
from kmem.codegen.rows.kernel import emit_rows
from kmem.codegen.rows.pointwise_kernel import emit_pointwise, pointwise_cost_ms, pointwise_space
from kmem.codegen.rows.space import row_space
from kmem.problem.graph import OpGraph
from kmem.problem.operators.row import Grain, Reduction
from kmem.problem.operators.table import lowering_of
from kmem.recipes import Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

#: Row kernels count elements of a row in 32 bits, with room for one tile beyond the end.
_MAX_COLUMNS = 2**31 - 2**17


def _site(found: FoundRegion) -> Site:
    region = without_counts(found.region, found.nodes)
    return Site(
        found.anchor,
        region.operator,
        found.nodes,
        region.inputs,
        region.outputs,
        region,
        region.bytes,
        float(region.rows * region.columns * len(region.statements)),
    )


def _region(site: Site) -> Region:
    assert isinstance(site.detail, Region)
    return site.detail


class RowRecipe(Recipe):
    """Regions with reductions whose operator is one of `operators`.

    Args:
        purpose: the first word of the kernels' names.
        operators: names of the vocabulary.
        element_output: True for regions that write as many elements as they read (norms, softmax),
            False for those that leave one value per row.
        grain: if given, only regions with a loss of this grain.
        reduced_again: those of `operators` that are taken as well where what follows them reduces
            the row, as a maximum over a softmax, so that one value per row is left.
    """

    roles = {
        "STRATEGY": (
            Role("split", (("registers", "loop"), ("split", "classes", "pipelined", "shared"))),
            # twice from DRAM; the second time from L2; kept by several programs; by one
            Role(
                "residency",
                (("loop", "split", "classes"), ("pipelined",), ("shared",), ("registers",)),
            ),
        ),
        "BK": (Role("rows"),),
        "BR": (Role("tile"),),
        "SPLIT": (Role("split"),),
        "num_warps": (Role("warps"),),
    }

    def __init__(
        self,
        purpose: str,
        operators: tuple[str, ...],
        element_output: bool,
        grain: Grain | None = None,
        reduced_again: tuple[str, ...] = (),
    ) -> None:
        self.purpose = purpose
        self.operators = operators
        self.element_output = element_output
        self.grain = grain
        self.reduced_again = reduced_again

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [
            _site(found)
            for found in find_row_regions(graph, takes_totals=True)
            if self._takes(found.region) and self._has_grain(graph, found)
        ]

    def _has_grain(self, graph: OpGraph, found: FoundRegion) -> bool:
        if self.grain is None:
            return True
        written = [lowering_of(graph, graph.node(name)) for name in found.nodes]
        return any(isinstance(item, Reduction) and item.grain is self.grain for item in written)

    def _takes(self, region: Region) -> bool:
        fits = is_supported_dtype(region) and 0 < region.columns < _MAX_COLUMNS and region.rows > 0
        return (
            fits
            and region.operator in self.operators
            and (
                region.has_element_output is self.element_output
                or region.operator in self.reduced_again
            )
        )

    def space(self, site: Site, device: Device) -> Space:
        return row_space(_region(site), device)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return row_cost_ms(_region(site), settings, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_rows(_region(site), settings, self.purpose)

    def emit_like(self, site: Site, settings: Settings, like: Site) -> Emission:
        return emit_rows(_region(site), settings, self.purpose, _region(like))


class PointwiseRecipe(Recipe):
    """Maximal chains of pointwise operators over one shape."""

    operators = ("pointwise",)
    roles = {
        "BLOCK": (Role("tile"),),
        "num_warps": (Role("warps"),),
        "HINT": (Role("eviction", (("keep",), ("stream",))),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        return [
            _site(found)
            for found in find_pointwise_regions(graph)
            if found.region.rows > 0 and found.region.inputs and is_supported_dtype(found.region)
        ]

    def space(self, site: Site, device: Device) -> Space:
        return pointwise_space(_region(site), device)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        return pointwise_cost_ms(_region(site), settings, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_pointwise(_region(site), settings)
