"""Transposed convolution in 1 to 3 dimensions by output phases; see SKILL.md.

Which sites are here; transposed.py has what is computed and the knobs, phases.py and operands.py
the kernels, launching.py their launches, empty_rows.py what no tap reaches, tuning.py the knobs'
values and times.
"""

from dataclasses import replace
from math import prod

from kmem.codegen.chains.chain import Chain, grow_chain, grow_reducing_chain
from kmem.codegen.convolutions.windows import has_empty_rows, lattice, make_axes, taps_by_phase
from kmem.codegen.steady import kept_operands
from kmem.codegen.text.parts import STORE_PARTS
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import per_axis
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import Contract, Device, Knob

from .empty_rows import FILL_RUN
from .launching import write_phase_launcher
from .operands import MULTIPLY, PACK_WEIGHT, STAGE_INPUT
from .phases import write_phase_kernel
from .transposed import Transposed, read_knobs
from .tuning import MAX_CHANNELS, PHASE_ROLES, follow_phases, phase_cost_ms, phase_space

_ALWAYS = (STORE_PARTS, STAGE_INPUT, PACK_WEIGHT, MULTIPLY)
MAX_ROW_STRIDE = 8  # phases along a row that one program keeps in registers
MAX_PARTS = 64  # phases of depth times height: branches of one kernel text
_RANKS = {
    "aten.conv_transpose1d.default": 1,
    "aten.conv_transpose2d.input": 2,
    "aten.conv_transpose3d.input": 3,
}
_NAMES = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class TransposedConvPhases(Recipe):
    operators = ("conv_transpose",)
    roles = PHASE_ROLES

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites = []
        taken: set[str] = set()
        for node in graph.nodes:
            detail = _read(graph, node) if node.target in _RANKS else None
            if detail is not None:
                chain = _chain(graph, node, detail, taken)
                sites.append(_site(graph, node, replace(detail, chain=chain)))
                taken.update(chain.nodes)
        return sites

    def space(self, site: Site, device: Device) -> Space:
        return phase_space(site.detail, device)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        cost_ms = phase_cost_ms(site.detail, read_knobs(settings), device)
        return cost_ms - (device.launch_ms if site.inputs[1].kept else 0.0)  # packed once

    def more_accurate(
        self, site: Site, settings: Settings, device: Device
    ) -> dict[str, Knob] | None:
        """The exact product for one of rounded operands; each step of that is added to a total."""
        if read_knobs(settings).precision == "exact":
            return None
        return super().more_accurate(site, settings, device)

    def emit(self, site: Site, settings: Settings) -> Emission:
        knobs = read_knobs(settings)
        chain = follow_phases(site.detail, knobs)
        detail: Transposed = replace(site.detail, band=knobs.band, chain=chain)
        functions = write_phase_kernel(detail)
        fill = (FILL_RUN,) if has_empty_rows(detail.axes) else ()
        return Emission(
            (*_ALWAYS, *fill, *detail.chain.functions, *(each.kernel for each in functions)),
            write_phase_launcher(functions[-1], detail, knobs),
            own_size_only=detail.dtype == "float32" and not knobs.is_split(detail.dtype),
        )


def _chain(graph: OpGraph, node: Node, detail: Transposed, taken: set[str]) -> Chain:
    """What follows a transposed convolution and can be written with it.

    A program holds the channels of a place whole where they are one group and fit a tile. A run of
    rows that no tap reaches is filled with one value of its channel.
    """
    fills = has_empty_rows(detail.axes)
    if detail.groups == 1 and detail.output[1] <= MAX_CHANNELS and not fills:
        chain = grow_reducing_chain(graph, node)
        if chain.reduces and not taken & {*chain.nodes}:
            return chain
    chain = grow_chain(graph, node, taken)
    return Chain() if chain.by_place and fills else chain


def _site(graph: OpGraph, node: Node, detail: Transposed) -> Site:
    given = _arguments(node).values()
    given = [arg.name for arg in given if isinstance(arg, Ref)]
    inputs = kept_operands(graph, [*given, *detail.chain.operands])
    nodes = (node.name, *detail.chain.nodes)
    made = detail.chain.result or node.name
    output = Operand(made, graph.spec(made))
    detail = replace(detail, stored=output.spec.shape)
    products = sum(taps * phases for taps, phases in taps_by_phase(detail.axes).items())
    channels = detail.output[1] * detail.channels_in
    per_sample = lattice(detail.axes) * channels // detail.groups
    # structural zeros are written, not computed
    has_zeros = prod(axis.stride for axis in detail.axes) > 1
    return Site(
        name=node.name,
        operator="conv_transpose",
        nodes=nodes,
        inputs=inputs,
        outputs=(output,),
        detail=detail,
        bytes=sum(operand.spec.bytes for operand in inputs) + output.spec.bytes,
        flops=2.0 * detail.output[0] * per_sample * products,
        flags=("algebraic",) if has_zeros else (),
    )


def _arguments(node: Node) -> dict[str, object]:
    return {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}


def _read(graph: OpGraph, node: Node) -> Transposed | None:
    """The transposed convolution a node does; None for what the kernel does not cover."""
    rank, given = _RANKS[node.target], _arguments(node)
    tensors = [
        graph.spec(given[name].name)
        for name in ("input", "weight", "bias")
        if isinstance(given.get(name), Ref)
    ]
    source, weight = tensors[:2]
    result = node.spec
    if len(source.shape) != rank + 2 or source.dtype not in FLOATS or result.numel == 0:
        return None
    if any(spec.dtype != source.dtype or not spec.is_contiguous for spec in (*tensors, result)):
        return None
    numbers = [
        per_axis(given.get(name), rank, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    axes = make_axes(source.shape[2:], result.shape[2:], weight.shape[2:], *numbers)
    depth, height = axes[:2]
    if axes[2].stride > MAX_ROW_STRIDE or depth.stride * height.stride > MAX_PARTS:
        return None
    groups = given.get("groups", 1)
    found = Transposed(axes, source.dtype, result.shape, source.shape[1], groups, len(tensors) == 3)
    staged = found.staged_size // found.planes
    if max(prod(source.shape[1:]), prod(result.shape[1:]), staged) >= 2**31:
        return None  # offsets within a sample are 32-bit
    return found


RECIPE = TransposedConvPhases()
