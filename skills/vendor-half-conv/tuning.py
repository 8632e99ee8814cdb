"""Which knobs a vendor's convolution has, and a rough time.

Figures: one NVIDIA H200, torch 2.11, Triton 3.6, 2026-11-23, copies at 4.27 TB/s and products at
781 (fp16), 423 (TF32) and 51 (fp32) TFLOP/s; tests/test_convolution_costs.py has what was measured.
"""

from math import prod

from kmem.codegen.rates import ceiling
from kmem.recipes import ACCURACY, Role, Settings, Space
from kmem.records import DTYPE_BYTES, Device

from .behind import finish_tile
from .phases import Part, has_phases, phase_parts
from .settings import EXACT, VendorSettings, first_rung, read_knobs, staged_elements
from .vendor import VendorConv, spare_outputs
from .work import finish_s, statistics_s

#: Share of the ceiling that cuDNN reaches channels-last with 32 channels and more: 664 to 723
#: TFLOP/s in fp16 and 342 to 396 in TF32 where it makes 128 outputs and more, 627 in three
#: dimensions (level 2's 61); with 64 outputs 480 to 509 (10, 19; the taps turned or not) and 464.
#: With 8 padded channels it takes kernels of sm_80, at 144 and 116. Exact: 38 to 41, transposed 5.9
#: to 10.6. Transposed with a stride, 195 to 360 by taps: products at a share, then the writing of
#: what is made, one after the other, which fits 3 and 5 taps in two dimensions and 3 in three.
SHARE_OF_CEILING, SHARE_IN_DEPTH = 0.88, 0.8
MANY_OUTPUTS, FEW_OUTPUTS = 64, 0.72
SHARE_TRANSPOSED = 0.62
#: Transposed without a stride it takes as long for 16, 24 and 48 outputs in depth as for 64: 4.1,
#: 2.9 and 1.9 times what their products would (level 1's 58, 70, 61); in two dimensions 1.4 to 1.6
#: times with 32 (71, 78). With a stride and a dilation all of it takes 1.9 to 3 times as long (77,
#: 79, 81).
NARROWING = {True: 1.0, False: 0.6}
DILATED_COST = 2.5
SHARE_OF_FP32, SHARE_OF_FP32_TRANSPOSED = 0.75, 0.2
#: Host time of one of several calls, and the share of its device time that is not hidden by it: 27
#: taps at stride 2 take 0.88 ms with 8 calls and 0.74 with one, 25 taps 0.28 with 4 and 0.15. And
#: what several calls must gain.
CALL_S, SHARE_BEHIND = 40e-6, 0.5
PARTS_COST = 1.03
WIDE_CHANNELS, WIDE_OUTPUTS = 32, 16
FILLING = 1.1
#: Of a copy: what its kernels reach where memory limits them (a 1x1 convolution of 64 channels 3.46
#: TB/s, 1D 3.4), staging (4.1 to 4.3), and finishing where rows begin at whole sectors (3.9 to 4).
LIBRARY_BANDWIDTH, STAGE_BANDWIDTH = 0.8, 0.98
FINISH_BANDWIDTH = 0.965
#: Where they do not, a tile's row touches one line more: 3.1 TB/s with 64 positions and 3.6 with
#: 128. Stores narrower than 16 bytes cost more: 2.7 with rows at 8 bytes and 64 positions.
SECTOR_BYTES, LINE_BYTES = 32, 128
LINE_COST = 0.8
NARROW_BYTES, NARROW_COST = 16, 1.12
#: Half a line read of each position costs as well, and so do large tiles, of which fewer share an
#: SM, per element; and warps with less than they could hold. 16384 elements were not measured.
HALF_LINE_COST = 1.07
TILE_COST, SPARE_COST = 9e-6, 0.01
#: Finding out that no image has to be staged again: 0.0018 ms for 16 images, 0.011 for 1024.
RESTAGE_MS, RESTAGE_IMAGE_MS = 0.0015, 9.3e-6
MEASURED_GAIN = 0.99  # of the library's time where it measures its kernels; mostly it guesses well
#: Of L2, what one kernel leaves for the next that begins where it ended. A guess.
LEFT_IN_L2 = 0.4
#: Elements of a tile for each of its warps. What pools 8 and more positions has them in a thread's
#: registers, and what norms rows most of a row: level 2's 3 takes 24 instructions an element with
#: tiles of 4096 of one warp, 67 with as many of four.
_MOST_OF_A_WARP = 1024
_MOST_POOLED, _MOST_OF_LINES = 2048, 4096
_POOLED_WIDE = 8
_UNITS = {"float32": "fp16", "bfloat16": "bf16", "float16": "fp16"}

ROLES = {
    "algorithm": (Role("search", (("guessed",), ("measured",))),),
    "vector": (Role("vector"),),
    "stage": (Role("tile"),),
    "channels": (Role("tile"),),
    "finish": (Role("tile"),),
    "warps": (Role("warps"),),
    "order": (Role("grouping", (("forward",), ("backward",))),),
    "hint": (Role("eviction", (("keep",), ("stream",))),),
    "transposed": (Role("layout", (("strided",), ("phases",))),),
}


def vendor_space(detail: VendorConv) -> Space:
    """The knobs of a site, which all convolutions of a chain share."""
    is_single = detail.base.dtype == "float32"
    widest = max(link.base.group_out for link in detail.links)
    has_lines = any(link.lines is not None for link in detail.links)
    return Space(
        {
            "algorithm": ("measured", "guessed"),
            "vector": (8, 4) if detail.links[0].base.group_in <= 4 else (8,),
            "stage": (4096, 8192, 2048),
            "channels": (64, 32, 128) if widest > 64 else (64, 32),
            "finish": (4096, 8192) if has_lines else (8192, 4096, 16384),
            "warps": (1, 2, 4) if has_lines else (8, 4, 16),
            "order": ("backward", "forward"),
            "hint": ("keep", "stream"),
            "transposed": ("phases", "strided")
            if any(map(has_phases, detail.links))
            else ("strided",),
            ACCURACY: tuple(range(EXACT + 1 - first_rung(detail))) if is_single else (0,),
        },
        # more values of a thread spill in chains such as mish twice
        lambda settings: _is_legal(detail, read_knobs(detail, settings)),
        {"order": "forward", "hint": "keep", "transposed": "strided"},
    )


def _is_legal(detail: VendorConv, knobs: VendorSettings) -> bool:
    most = _MOST_OF_A_WARP
    if any(prod(link.base.window) >= _POOLED_WIDE for link in detail.links):
        most = _MOST_POOLED
    if any(link.lines is not None for link in detail.links):
        most = _MOST_OF_LINES
    return knobs.finish <= most * knobs.warps


def vendor_cost_ms(detail: VendorConv, settings: Settings, device: Device) -> float:
    """Time of every kernel of a chain, one after the other."""
    knobs = read_knobs(detail, settings)
    return sum(_link_ms(link, knobs, device, is_last=link is detail) for link in detail.links)


def _link_ms(detail: VendorConv, knobs: VendorSettings, device: Device, *, is_last: bool) -> float:
    """Time of staging, of the library's kernel, and of what follows if the result is returned.

    What stages another's result reads what the library made of that.
    """
    base = detail.base
    between = _size_between(detail, knobs)
    size = DTYPE_BYTES[base.dtype]
    staged, made = (elements * between for elements in staged_elements(detail, knobs))
    bandwidth = device.dram_bytes_per_s
    read = base.images * base.channels_in * base.inputs * size * (1 + len(detail.prologue_steps))
    if detail.before is not None:
        read = staged_elements(detail.before, knobs)[1] * between
    stage_s = (read + staged) / (STAGE_BANDWIDTH * bandwidth)
    parts = phase_parts(detail) if knobs.is_phased(detail) else [None]
    library_s = sum(_library_s(detail, knobs, part, device) for part in parts)
    if len(parts) > 1:
        times = [_library_s(detail, knobs, part, device) for part in parts]
        library_s = PARTS_COST * sum(max(each, CALL_S + SHARE_BEHIND * each) for each in times)
    if knobs.algorithm == "measured":
        library_s *= MEASURED_GAIN
    if any(map(spare_outputs, base.axes)) and not detail.is_transposed:
        stage_s += 2.0 * made / bandwidth  # what is wanted of the library's result is copied
    seconds = stage_s + library_s
    launches = 1 + len(parts)
    if is_last and not detail.is_summed:
        elements = made // between
        seconds += max(
            _finish_s(detail, knobs, made, device), finish_s(detail, knobs, elements, device)
        )
        launches += 1
    if detail.statistics is not None:
        launches += 2
        seconds += max(
            made / (FINISH_BANDWIDTH * bandwidth),
            statistics_s(detail, knobs, made // between, device),
        )
    if knobs.order == "backward":
        left = LEFT_IN_L2 * device.l2_bytes
        seconds -= (min(left, staged / 2) + min(left, made / 2)) / bandwidth
    # higher rungs have one launch less, which must not make them look cheaper
    is_single = base.dtype == "float32"
    restaging_ms = RESTAGE_MS + RESTAGE_IMAGE_MS * base.images + device.launch_ms
    return 1e3 * seconds + (restaging_ms if is_single else 0.0) + launches * device.launch_ms


def _size_between(detail: VendorConv, knobs: VendorSettings) -> int:
    """Bytes of an element that the library reads or makes."""
    is_half = knobs.is_scaled(detail) or detail.base.dtype != "float32"
    return 2 if is_half else DTYPE_BYTES[detail.base.dtype]


def _finish_s(detail: VendorConv, knobs: VendorSettings, made: int, device: Device) -> float:
    """Time of the kernel behind, which reads `made` bytes."""
    base = detail.base
    size = DTYPE_BYTES[base.dtype]
    written = detail.result_spec.numel * size
    extra = sum(written for steps in base.operand_steps if 0 not in steps[2:])
    channel, position = detail.result[1:]
    block_c, block_p = finish_tile(detail, knobs)
    # where rows begin, and how long they are in a tile
    step, length = (channel, block_p) if position == 1 else (position, block_c)
    if step * size % SECTOR_BYTES:
        written *= 1.0 + LINE_COST * LINE_BYTES / (length * size)
    factor = NARROW_COST if step * size % NARROW_BYTES else 1.0
    factor *= HALF_LINE_COST if block_c < min(base.group_out, LINE_BYTES // 2) else 1.0
    factor *= 1.0 + TILE_COST * block_c * block_p
    factor *= 1.0 + SPARE_COST * (_MOST_OF_A_WARP * knobs.warps / knobs.finish - 1.0)
    return factor * (made + written + extra) / (FINISH_BANDWIDTH * device.dram_bytes_per_s)


def _library_s(
    detail: VendorConv, knobs: VendorSettings, part: Part | None, device: Device
) -> float:
    """Time of one call of the library: of all, or of a part of the phases."""
    base = detail.base
    staged, made = staged_elements(detail, knobs)
    if part is not None:
        made = base.images * knobs.padded_out(detail) * prod(part.places) * prod(part.phases)
    bandwidth = LIBRARY_BANDWIDTH * device.dram_bytes_per_s
    between = _size_between(detail, knobs)
    product_s = _product_s(detail, knobs, part, device)
    is_spread = _is_spread(detail, part)
    if is_spread:
        product_s += made * between / bandwidth
    seconds = max(product_s, (staged + made) * between / bandwidth)
    is_dilated = any(axis.dilation > 1 for axis in base.axes)
    return seconds * (DILATED_COST if is_spread and is_dilated else 1.0)


def _is_spread(detail: VendorConv, part: Part | None) -> bool:
    """Whether the call is all of a transposed convolution with strides."""
    is_strided = any(axis.stride > 1 for axis in detail.base.axes)
    return part is None and detail.is_transposed and is_strided


def _product_s(
    detail: VendorConv, knobs: VendorSettings, part: Part | None, device: Device
) -> float:
    """Time of the library's products, of padded channels.

    Where eager is expected to be exact a lower rung is expected to end as the exact one.
    """
    base = detail.base
    is_exact = knobs.accuracy == EXACT or base.is_eager_exact
    half = "tf32" if knobs.accuracy else _UNITS[base.dtype]
    unit = "fp32" if is_exact else half
    is_spread = _is_spread(detail, part)
    padded_in, padded_out = knobs.padded_in(detail), knobs.padded_out(detail)
    outputs = padded_out * (prod(part.phases) if part is not None else 1)
    if is_exact:
        share = SHARE_OF_FP32_TRANSPOSED if is_spread else SHARE_OF_FP32
    elif is_spread:
        share = SHARE_TRANSPOSED
    else:
        is_deep = base.axes[0].kernel > 1
        share = SHARE_IN_DEPTH if is_deep else SHARE_OF_CEILING
        share *= FEW_OUTPUTS if outputs <= MANY_OUTPUTS else 1.0
        if detail.is_transposed and part is None:
            share *= min(1.0, outputs / MANY_OUTPUTS) ** NARROWING[is_deep]
    share *= min(1.0, padded_in / WIDE_CHANNELS) ** FILLING * min(1.0, outputs / WIDE_OUTPUTS)
    flops = detail.flops * padded_in / base.group_in * padded_out / base.group_out
    if part is not None:
        flops = 2.0 * base.images * prod(part.places) * prod(part.taps) * padded_in * outputs
    return flops / (ceiling(device, unit) * share)
