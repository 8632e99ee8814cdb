"""The kernel for a region without reductions: one flat index, a tile of BLOCK elements per program.

Operands laid out as the output use the flat index itself (16-byte vectors); broadcast or strided
ones decode it into axes, whose sizes are constexpr, so that division becomes multiplication. The
index is 32-bit below 2^31 elements. Settings: BLOCK, num_warps, HINT ("keep" or "stream":
evict_first loads).
"""

from math import log2

from kmem.codegen.launching import allocations, entry
from kmem.codegen.pointwise import HELPERS, compute_type
from kmem.codegen.region import Load, Map, Region
from kmem.recipes import Emission, Settings, Space
from kmem.records import Device, content_hash


def emit_pointwise(region: Region, settings: Settings) -> Emission:
    """The kernel and launcher for one setting. The region must have kept axes alone."""
    dense = _dense_strides(region)
    policy = ', eviction_policy="evict_first"' if settings["HINT"] == "stream" else ""
    body = [
        "pid = tl.program_id(0)",
        "if WIDE:",
        "    pid = pid.to(tl.int64)",
        "i = pid * BLOCK + tl.arange(0, BLOCK)",
        "mask = None if EVEN else i < N",
    ]
    if any(item.strides != dense for item in (*region.loads, *region.stores) if any(item.strides)):
        body += _decode(len(region.axes))
    constants: dict[str, object] = {"N": region.rows}
    constants |= {f"D{axis}": region.axes[axis].size for axis in range(len(region.axes))}
    for item in region.statements:
        if isinstance(item, Map):
            body.append(f"{item.name} = {item.text}")
        elif isinstance(item, Load):
            offset = _offset(item.name, item.strides, dense)
            access = (
                f"p{item.operand}"
                if offset is None
                else (
                    f"p{item.operand} + {offset}, "
                    f"mask=mask{policy if item.strides == dense else ''}"
                )
            )
            body.append(f"{item.name} = tl.load({access}).to({compute_type(item.dtype)})")
            constants |= {
                f"S_{item.name}_{axis}": stride
                for axis, stride in enumerate(item.strides)
                if stride and item.strides != dense
            }
    for store in region.stores:
        name = f"q{store.output}"
        constants |= {
            f"S_{name}_{axis}": stride
            for axis, stride in enumerate(store.strides)
            if stride and store.strides != dense
        }
        offset = _offset(name, store.strides, dense) or "i"
        body.append(
            f"tl.store({name} + {offset}, tl.broadcast_to({store.value}, "
            f"(BLOCK,)).to({name}.dtype.element_ty), mask=mask)"
        )
    block = int(settings["BLOCK"])
    constants |= {
        "BLOCK": block,
        "EVEN": region.rows % block == 0,
        "WIDE": region.is_wide or region.rows + block >= 2**31,
    }
    pointers = [f"p{index}" for index in range(len(region.inputs))] + [
        f"q{index}" for index in range(len(region.outputs))
    ]
    text = entry("pointwise", pointers, list(constants), body)
    name = f"pointwise_{content_hash(text)[:8]}"
    lines = [f"{key} = {value}" for key, value in constants.items()] + allocations(region)
    arguments = ", ".join([*pointers, *(f"{key}={key}" for key in constants)])
    lines += [f"{name}[(triton.cdiv(N, BLOCK),)]({arguments}, num_warps={settings['num_warps']})"]
    lines += ["return " + ", ".join(f"q{index}" for index in range(len(region.outputs)))]
    launcher = (
        f"def launch({', '.join(pointers[: len(region.inputs)])}):\n"
        + "\n".join(f"    {line}" for line in lines)
        + "\n"
    )
    helpers = tuple((helper, source) for helper, source in HELPERS.items() if f"{helper}(" in text)
    return Emission((*helpers, (name, text.replace("def pointwise(", f"def {name}(", 1))), launcher)


def _dense_strides(region: Region) -> tuple[int, ...]:
    strides, step = [], 1
    for axis in reversed(region.axes):
        strides.append(step)
        step *= axis.size
    return tuple(reversed(strides))


def _decode(rank: int) -> list[str]:
    lines, rest = [], "i"
    for axis in reversed(range(rank)):
        lines.append(f"i{axis} = {rest} % D{axis}" if axis else f"i{axis} = {rest}")
        if axis:
            lines.append(f"rest{axis} = {rest} // D{axis}")
            rest = f"rest{axis}"
    return lines


def _offset(name: str, strides: tuple[int, ...], dense: tuple[int, ...]) -> str | None:
    """Offset text; None for an operand with one element."""
    if not any(strides):
        return None
    if strides == dense:
        return "i"
    return " + ".join(f"i{axis} * S_{name}_{axis}" for axis, stride in enumerate(strides) if stride)


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
    shape = (
        1.0
        + 0.02 * max(0.0, log2(block / 1024))
        + (0.1 if per_thread < 4 else 0.01 * abs(log2(per_thread / 8)))
    )
    fill = min(1.0, programs / device.sm_count)
    streaming = 1.02 if settings["HINT"] == "stream" else 1.0
    return (
        1e3
        * region.bytes
        / (0.93 * device.dram_bytes_per_s)
        * shape
        * streaming
        / max(fill, 1e-3) ** 0.5
        + device.launch_ms
    )
