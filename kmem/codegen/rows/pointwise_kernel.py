"""The kernel for a region without reductions: one flat index, a tile of BLOCK elements per program.

Operands laid out as the output use the flat index itself (16-byte vectors). Broadcast or strided
ones decode it into axes, whose sizes are constexpr, so that division becomes multiplication. The
index is 32-bit below 2^31 elements. Settings: BLOCK, num_warps, HINT ("keep" or "stream":
evict_first loads).
"""

from math import log2

from kmem.codegen.regions.pointwise import compute_type
from kmem.codegen.regions.region import Load, Map, Region, Store
from kmem.codegen.rows.launching import allocations, assignments, stride_constants
from kmem.codegen.text.calls import write_launch_function
from kmem.codegen.text.definitions import define
from kmem.problem.operators.expressions import order_helpers
from kmem.problem.sizes import dense_strides
from kmem.recipes import Emission, Settings, Space
from kmem.records import Device


def emit_pointwise(region: Region, settings: Settings) -> Emission:
    """The kernel and launcher for one setting. The region must have kept axes alone."""
    inputs = [f"p{index}" for index in range(len(region.inputs))]
    outputs = [f"q{index}" for index in range(len(region.outputs))]
    constants = _constants(region, int(settings["BLOCK"]))
    body = _body(region, streams=settings["HINT"] == "stream")
    says = "BLOCK elements of the result, element by element."
    kernel = define("pointwise", [*inputs, *outputs], constants, body, says)
    launch = kernel.write_launch("triton.cdiv(N, BLOCK)", {}, {"num_warps": settings["num_warps"]})
    lines = [
        *assignments(constants),
        *allocations(region),
        launch,
        f"return {', '.join(outputs)}",
    ]
    maps = [item for item in region.statements if isinstance(item, Map)]
    helpers = order_helpers(helper for item in maps for helper in item.helpers)
    return Emission((*helpers, kernel.kernel), write_launch_function(inputs, lines))


def _constants(region: Region, block: int) -> dict[str, object]:
    """Every constexpr argument by name."""
    dense = dense_strides([axis.size for axis in region.axes])
    constants: dict[str, object] = {"N": region.rows}
    constants |= {f"D{axis}": region.axes[axis].size for axis in range(len(region.axes))}
    for item in (*region.loads, *region.stores):
        if item.strides != dense:
            constants |= stride_constants(_name(item), item.strides)
    return constants | {
        "BLOCK": block,
        "EVEN": region.rows % block == 0,
        "WIDE": region.is_wide or region.rows + block >= 2**31,
    }


def _body(region: Region, *, streams: bool) -> list[str]:
    dense = dense_strides([axis.size for axis in region.axes])
    lines = [
        "pid = tl.program_id(0)",
        "if WIDE:",
        "    pid = pid.to(tl.int64)",
        "i = pid * BLOCK + tl.arange(0, BLOCK)",
        "mask = None if EVEN else i < N",
    ]
    moving = [item for item in (*region.loads, *region.stores) if any(item.strides)]
    if any(item.strides != dense for item in moving):
        lines += _decode(len(region.axes))
    for item in region.statements:
        if isinstance(item, Map):
            lines.append(f"{item.name} = {item.text}")
        elif isinstance(item, Load):
            policy = ', eviction_policy="evict_first"' if streams and item.strides == dense else ""
            lines.append(_load(item, dense, policy))
    return lines + [_store(store, dense) for store in region.stores]


def _load(item: Load, dense: tuple[int, ...], policy: str) -> str:
    offset = _offset(item, dense)
    access = f"p{item.operand}"
    if offset is not None:
        access += f" + {offset}, mask=mask{policy}"
    return f"{item.name} = tl.load({access}).to({compute_type(item.dtype)})"


def _store(store: Store, dense: tuple[int, ...]) -> str:
    name = _name(store)
    value = f"tl.broadcast_to({store.value}, (BLOCK,)).to({name}.dtype.element_ty)"
    return f"tl.store({name} + {_offset(store, dense) or 'i'}, {value}, mask=mask)"


def _name(item: Load | Store) -> str:
    """What the strides of an operand are named after."""
    return item.name if isinstance(item, Load) else f"q{item.output}"


def _decode(rank: int) -> list[str]:
    """The flat index as one index per axis."""
    lines, rest = [], "i"
    for axis in reversed(range(rank)):
        lines.append(f"i{axis} = {rest} % D{axis}" if axis else f"i{axis} = {rest}")
        if axis:
            lines.append(f"rest{axis} = {rest} // D{axis}")
            rest = f"rest{axis}"
    return lines


def _offset(item: Load | Store, dense: tuple[int, ...]) -> str | None:
    """The offset as text; None for an operand with one element."""
    if not any(item.strides):
        return None
    if item.strides == dense:
        return "i"
    terms = [
        f"i{axis} * S_{_name(item)}_{axis}" for axis, stride in enumerate(item.strides) if stride
    ]
    return " + ".join(terms)


def pointwise_space(region: Region, device: Device) -> Space:
    """BLOCK elements per program, warps, and whether loads are marked for early eviction."""

    def is_legal(settings: Settings) -> bool:
        per_thread = int(settings["BLOCK"]) // (int(settings["num_warps"]) * device.warp_size)
        return 2 <= per_thread <= 32

    return Space(
        {"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (4, 8), "HINT": ("keep", "stream")},
        is_legal,
    )


def pointwise_cost_ms(region: Region, settings: Settings, device: Device) -> float:
    """Bytes over bandwidth, less where few elements per thread or few programs leave it idle.

    Source of the factors: swish, tanh and gelu of 4096 x 393216 at ten settings each on an H200
    (tools/gpu_rowwise.py, 2026-11-21).
    """
    block, threads = int(settings["BLOCK"]), int(settings["num_warps"]) * device.warp_size
    programs = -(-region.rows // block)
    per_thread = block / threads
    thinness = 0.1 if per_thread < 4 else 0.01 * abs(log2(per_thread / 8))
    shape = 1.0 + 0.02 * max(0.0, log2(block / 1024)) + thinness
    fill = min(1.0, programs / device.sm_count)
    streaming = 1.02 if settings["HINT"] == "stream" else 1.0
    copy_ms = 1e3 * region.bytes / (0.93 * device.dram_bytes_per_s)
    return copy_ms * shape * streaming / max(fill, 1e-3) ** 0.5 + device.launch_ms
