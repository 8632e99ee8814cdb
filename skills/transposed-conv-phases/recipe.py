"""Transposed convolution in 1 to 3 dimensions by output phases; see SKILL.md and
kmem/codegen/transposed.py.
"""

from dataclasses import dataclass
from math import prod

from kmem.codegen.empty_rows import FILL_RUN
from kmem.codegen.matmul import ceiling
from kmem.codegen.transposed import (
    STORE_PARTS,
    Tile,
    staged_channels,
    staged_size,
    write_phase_kernel,
    write_phase_launcher,
)
from kmem.codegen.transposed_operands import MULTIPLY, PACK_WEIGHT, STAGE_INPUT
from kmem.codegen.windows import (
    Axis,
    Taps,
    has_empty_rows,
    lattice,
    lattice_size,
    make_axes,
    phase_taps,
    taps_by_phase,
)
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import next_power_of_two, per_axis
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device

MAX_ROW_STRIDE = 8  # phases along a row that one program keeps in registers
MAX_PARTS = 64  # phases of depth times height: branches of one kernel text
MIN_DOT = 16  # smallest side of tl.dot. Source: Triton language reference, tl.dot
#: Rows of a warp group's product, and a warp's part of it: further warps would do the same again.
#: Source: PTX ISA, wgmma.mma_async shapes
MIN_POSITIONS, WARP_POSITIONS = 64, 16
MIN_COLUMNS = 8
BANDS = (1, 2, 4)
MAX_THREAD_SUMS = 128
MAX_THREAD_COPIES = 32  # of one step and thread; more addresses than that spill
# Source: CUDA C++ Programming Guide, compute capability 9.0
SM_REGISTERS, SM_SHARED_BYTES = 65536, 227 * 2**10
# of the 227 KiB a block may have on sm_90; the rest is the compiler's
MAX_SHARED_BYTES = 200 * 2**10
# reads from L2 of an H200, measured class of figure; it only ranks settings
L2_BYTES_PER_S = 5.5e12
# of one SM. Source: as in kmem/codegen/strip_tuning.py
L1_BYTES_PER_CLOCK = 128
CLOCK_HZ = 1.7e9
WARP_INSTRUCTIONS_PER_CLOCK = 4
#: What follows is fitted to one H200 (torch 2.11, Triton 3.6, 2026-11-21; KernelBench level 1,
#: problems 58, 64, 77, also in bf16) and ranks; that day's kernel had no bands and wrote planes
#: without taps as the others. From a step's loads to their arrival where one step is ahead of the
#: one that multiplies.
STEP_S = 1e-6
#: By band, what every stage beyond two adds to a kernel's time: what it wants of shared memory the
#: L1 cache lacks. With a third stage, six of seven pairs of settings with single rows took 7 to 28%
#: longer, three with bands of two 5 to 9%; bands of four, whose few programs have nobody to hide
#: their loads, took 3 to 9% less. Source: H200, 2026-11-22, problems 61, 73, 74, 77, 79 and
#: conv_transpose3d.
STAGE_COST = {1: 0.07, 2: 0.05, 4: -0.03}
# of an SM for each piece of an output row: the sectors at its ends are written in part
PIECE_CYCLES = 9.5
SHARE_OF_BANDWIDTH = 0.9  # of a copy
#: Of a program's other phases, what its longest does not hide: always, and more the fewer programs
#: share the SM.
EXPOSED, EXPOSED_ALONE = 0.5, 0.2
_DTYPES = ("float32", "bfloat16", "float16")
_RANKS = {
    "aten.conv_transpose1d.default": 1,
    "aten.conv_transpose2d.input": 2,
    "aten.conv_transpose3d.input": 3,
}
_NAMES = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
SHARE_OF_CEILING = 0.8  # that a wide product of this loop reaches; it only ranks settings


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution; `output_padding` shows only in the output's size."""

    axes: tuple[Axis, Axis, Axis]
    dtype: str
    output: tuple[int, ...]
    channels_in: int
    groups: int
    has_bias: bool


class TransposedConvPhases(Recipe):
    operators = ("conv_transpose",)

    def match(self, graph: OpGraph, contract: Contract) -> list[Site]:
        sites = []
        for node in graph.nodes:
            detail = _read(graph, node) if node.target in _RANKS else None
            if detail is not None:
                inputs = tuple(
                    Operand(arg.name, graph.spec(arg.name))
                    for arg in _arguments(node).values()
                    if isinstance(arg, Ref)
                )
                size = sum(operand.spec.bytes for operand in inputs) + node.spec.bytes
                products = sum(taps * phases for taps, phases in taps_by_phase(detail.axes).items())
                per_sample = (
                    lattice(detail.axes) * detail.output[1] * detail.channels_in // detail.groups
                )
                flops = 2.0 * detail.output[0] * per_sample * products
                phases = prod(axis.stride for axis in detail.axes)
                # structural zeros are written, not computed
                flags = ("algebraic",) if phases > 1 else ()
                sites.append(
                    Site(
                        node.name,
                        "conv_transpose",
                        (node.name,),
                        inputs,
                        (Operand(node.name, node.spec),),
                        detail,
                        size,
                        flops,
                        flags,
                    )
                )
        return sites

    def space(self, site: Site, device: Device) -> Space:
        detail: Transposed = site.detail
        depth, height, width = detail.axes
        per_group_out = detail.output[1] // detail.groups
        per_group_in = detail.channels_in // detail.groups
        padded_in = staged_channels(per_group_in, detail.dtype)
        widest = min(128, max(MIN_DOT, next_power_of_two(per_group_out)))
        rows_in_all = next_power_of_two(
            -(-depth.out // depth.stride) * -(-height.out // height.stride)
        )
        columns = sorted(
            {
                min(count, max(MIN_COLUMNS, next_power_of_two(lattice_size(width))))
                for count in (8, 16, 32, 64, 128, 256)
            }
        )

        def is_legal(settings: Settings) -> bool:
            tile = _tile(settings)
            fewest = max(MIN_POSITIONS, WARP_POSITIONS * settings["warps"])
            if not fewest <= tile.positions <= 256 or tile.rows > max(
                rows_in_all, MIN_POSITIONS // columns[-1]
            ):
                return False
            copies = _operand_bytes(detail, settings) / tile.copy_bytes / (32 * settings["warps"])
            fits = _shared_bytes(detail, settings) <= MAX_SHARED_BYTES
            return (
                fits
                and _thread_sums(detail, settings) <= MAX_THREAD_SUMS
                and copies <= MAX_THREAD_COPIES
            )

        return Space(
            {
                # cuDNN computes grouped ones in full fp32 and others in TF32, as far as measured
                # (torch 2.11, H200, 2026-11-21: relative error 6.9e-8 with 4 groups, 2.8e-4
                # without); which it does is not in the graph, so TF32 may be refused by the judge.
                "precision": ("tf32", "exact")
                if detail.dtype == "float32" and detail.groups == 1
                else ("exact",),
                "band": tuple(band for band in BANDS if _takes_bands(detail, band)),
                "rows": (1, 2, 4, 8, 16, 32),
                "columns": tuple(columns),
                "block_co": tuple(
                    count for count in (16, 32, 64, 128) if widest // 2 <= count <= widest
                ),
                "block_k": tuple(
                    depth for depth in (16, 32, 64) if depth <= max(16, 2 * padded_in)
                ),
                "copy_bytes": (8, 16),
                "warps": (4, 8),
                "stages": (2, 3, 4),
            },
            is_legal,
        )

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Transposed = site.detail
        tile, size = _tile(settings), DTYPE_BYTES[detail.dtype]
        depth, height, width = detail.axes
        per_group_out = detail.output[1] // detail.groups
        per_group_in = detail.channels_in // detail.groups
        parts = 3 if _is_split(detail, settings) else 1
        planes = detail.output[0] * detail.groups
        staged = (
            planes * staged_size(detail.axes, per_group_in, detail.dtype) * size * min(parts, 2)
        )
        written = prod(detail.output) * size
        source = (
            detail.output[0] * detail.channels_in * prod(axis.size for axis in detail.axes) * size
        )
        fills = has_empty_rows(detail.axes)
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
        stage_s = (source + staged) / bandwidth

        positions = -(-lattice_size(width) // tile.columns) * tile.columns
        positions *= (
            -(-lattice_size(depth) * lattice_size(height) // tile.rows) * tile.rows * planes
        )
        channels = -(-per_group_out // tile.channels) * tile.channels
        padded_in = staged_channels(per_group_in, detail.dtype)
        contraction = (
            sum(
                -(-taps * padded_in // tile.depth) * phases
                for taps, phases in taps_by_phase(detail.axes).items()
            )
            * tile.depth
        )
        unit = {"float32": "tf32", "bfloat16": "bf16", "float16": "fp16"}[detail.dtype]
        # a narrow product reads more operands from shared memory than it multiplies; see
        # staged_recipe.py
        rate = ceiling(device, unit) * SHARE_OF_CEILING / max(1.0, 0.5 + 32 / tile.channels)
        product_s = 2.0 * positions * channels * contraction * parts / rate
        blocks = positions / (tile.positions * tile.band) * channels / tile.channels
        steps, moved = _steps(detail, settings)
        moved *= blocks
        copy_s = moved / (
            L2_BYTES_PER_S
            if tile.copy_bytes == 16
            else device.sm_count * L1_BYTES_PER_CLOCK * CLOCK_HZ / 2
        )
        instructions = moved / tile.copy_bytes * 3 + blocks * steps * 16 * 32 * settings["warps"]
        issue_s = instructions / 32 / (device.sm_count * WARP_INSTRUCTIONS_PER_CLOCK * CLOCK_HZ)
        row_pieces = -(-lattice_size(width) // tile.columns) + (
            not fills and width.out > lattice_size(width) * width.stride
        )
        # planes without taps take whole vectors
        rows = written / size / width.out * (lattice_size(depth) / depth.out if fills else 1.0)
        store_s = rows * row_pieces * PIECE_CYCLES / (device.sm_count * CLOCK_HZ)
        registers = 32 * settings["warps"] * (56 + _thread_sums(detail, settings))
        resident = max(
            1,
            min(
                SM_REGISTERS // registers,
                SM_SHARED_BYTES // _shared_bytes(detail, settings),
                64 // settings["warps"],
            ),
        )
        latency_s = blocks / (device.sm_count * resident) * (steps - 1) * STEP_S
        seconds = ((staged + written) / bandwidth, product_s, copy_s, issue_s, store_s, latency_s)
        exposed = (EXPOSED + EXPOSED_ALONE / resident) * (sum(seconds) - max(seconds))
        deeper = 1.0 + STAGE_COST[tile.band] * (settings["stages"] - 2)
        return 1e3 * (stage_s + (max(seconds) + exposed) * deeper) + 3 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Transposed = site.detail
        # A setting found at one size is used at others too, that has fewer rows.
        settings = {
            **settings,
            "band": settings["band"] if _takes_bands(detail, settings["band"]) else 1,
        }
        kernel = write_phase_kernel(detail.axes, has_bias=detail.has_bias, band=settings["band"])
        launcher = write_phase_launcher(
            kernel[0],
            detail.axes,
            detail.output,
            dtype=detail.dtype,
            channels_in=detail.channels_in,
            groups=detail.groups,
            has_bias=detail.has_bias,
            tile=_tile(settings),
            split=_is_split(detail, settings),
            warps=settings["warps"],
            stages=settings["stages"],
        )
        fill = (FILL_RUN,) if has_empty_rows(detail.axes) else ()
        own_size_only = detail.dtype == "float32" and not _is_split(detail, settings)
        return Emission(
            (STORE_PARTS, STAGE_INPUT, PACK_WEIGHT, MULTIPLY, *fill, kernel),
            launcher,
            own_size_only,
        )


def _tile(settings: Settings) -> Tile:
    return Tile(
        *(
            settings[name]
            for name in ("band", "rows", "columns", "block_co", "block_k", "copy_bytes")
        )
    )


def _takes_bands(detail: Transposed, band: int) -> bool:
    """Whether rows share input rows in every phase along height, and are enough; where one has a
    single tap a band of two took 4 to 13% longer than single rows (H200, 2026-11-22, problem 73).
    """
    height = detail.axes[1]
    phases = [
        (-(-(height.out - phase) // height.stride), taps.count)
        for phase, taps in enumerate(phase_taps(height))
        if taps.count
    ]
    return band == 1 or all(rows >= band and count > 1 for rows, count in phases)


def _step_bytes(detail: Transposed, settings: Settings, taps: Taps) -> int:
    """Bytes one step of one program copies to shared memory, where a band's steps take these taps
    along height.
    """
    tile = _tile(settings)
    reads = len(
        {row - tap * taps.shift_step for row in range(tile.band) for tap in range(taps.count)}
    )
    elements = (tile.positions * reads + tile.channels * taps.count) * tile.depth
    return elements * DTYPE_BYTES[detail.dtype] * (2 if _is_split(detail, settings) else 1)


def _operand_bytes(detail: Transposed, settings: Settings) -> int:
    """Bytes of a program's largest step."""
    return max(_step_bytes(detail, settings, taps) for taps in _taps_of_a_step(detail, settings))


def _taps_of_a_step(detail: Transposed, settings: Settings) -> list[Taps]:
    """By phase along height: those that a band takes in one step.

    A single row takes its taps in turn.
    """
    phases = [taps for taps in phase_taps(detail.axes[1]) if taps.count]
    return phases if settings["band"] > 1 else [Taps(1) for _ in phases]


def _steps(detail: Transposed, settings: Settings) -> tuple[int, int]:
    """Steps of one block of the lattice over all its phases, and the bytes that they copy to shared
    memory.
    """
    depth, height, width = (
        [taps for taps in phase_taps(axis) if taps.count] for axis in detail.axes
    )
    padded_in = staged_channels(detail.channels_in // detail.groups, detail.dtype)
    steps = copied = 0
    for along, at_once in zip(height, _taps_of_a_step(detail, settings), strict=True):
        for across in (one.count * other.count for one in depth for other in width):
            count = -(-across * along.count // at_once.count * padded_in // settings["block_k"])
            steps += count
            copied += count * _step_bytes(detail, settings, at_once)
    return steps, copied


def _shared_bytes(detail: Transposed, settings: Settings) -> int:
    """Shared memory of one program: operands of all stages, or results on their way between
    threads.
    """
    tile = _tile(settings)
    exchanged = (
        tile.channels
        * tile.positions
        * next_power_of_two(detail.axes[2].stride)
        * DTYPE_BYTES[detail.dtype]
    )
    return max(_operand_bytes(detail, settings) * settings["stages"], exchanged)


def _thread_sums(detail: Transposed, settings: Settings) -> float:
    """Accumulators of one thread: one for each phase along the row and row of the band, and one
    more for a split product's chunk.
    """
    tile = _tile(settings)
    sets = sum(taps.count > 0 for taps in phase_taps(detail.axes[2])) * tile.band + _is_split(
        detail, settings
    )
    return tile.channels * tile.positions * sets / (32 * settings["warps"])


def _is_split(detail: Transposed, settings: Settings) -> bool:
    """Whether fp32 goes through tensor cores as two parts; half precision is exact in one."""
    return detail.dtype == "float32" and settings["precision"] == "exact"


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
    source = tensors[0]
    weight = tensors[1]
    result = node.spec
    if len(source.shape) != rank + 2 or source.dtype not in _DTYPES or result.numel == 0:
        return None
    if any(spec.dtype != source.dtype or not spec.is_contiguous for spec in (*tensors, result)):
        return None
    numbers = [
        per_axis(given.get(name), rank, default)
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    axes = make_axes(source.shape[2:], result.shape[2:], weight.shape[2:], *numbers)
    depth, height, width = axes
    if width.stride > MAX_ROW_STRIDE or depth.stride * height.stride > MAX_PARTS:
        return None
    groups = given.get("groups", 1)
    staged = staged_size(axes, source.shape[1] // groups, source.dtype)
    if max(prod(source.shape[1:]), prod(result.shape[1:]), staged) >= 2**31:
        return None  # offsets within a sample are 32-bit
    return Transposed(axes, source.dtype, result.shape, source.shape[1], groups, len(tensors) == 3)


RECIPE = TransposedConvPhases()
