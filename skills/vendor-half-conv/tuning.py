"""Which knobs a vendor's convolution has, and a rough time."""

from kmem.codegen.rates import ceiling
from kmem.recipes import ACCURACY, Role, Settings, Space
from kmem.records import DTYPE_BYTES, Device

from .launcher import EXACT, VendorSettings, read_knobs, staged_elements
from .vendor import VendorConv

#: Share of the tensor-core ceiling that cuDNN reaches with 32 channels and more on both sides,
#: channels-last. Source: probes on an H200 with torch 2.11, 2026-11-22, 3x3 over 64 and 128
#: channels: 654 to 705 TFLOP/s in fp16 of 781, 350 in TF32 of 423.
SHARE_OF_CEILING = 0.84
WIDE_CHANNELS = 32
#: In three dimensions, and transposed: less, by runs of channels-last-conv on KernelBench level 1.
SHARE_IN_DEPTH = 0.5
SHARE_OF_FP32 = 0.6
SHARE_OF_BANDWIDTH = 0.9  # of a copy, that kernels with a transposition reach
RESTAGE_MS = 0.003  # that finding out that no image has to be staged again takes
MEASURED_GAIN = 0.97  # of the library's time where it measures its kernels: it chooses among them
_MOST_OF_A_WARP = 1024
_UNITS = {"float32": "fp16", "bfloat16": "bf16", "float16": "fp16"}

ROLES = {
    "algorithm": (Role("search", (("guessed",), ("measured",))),),
    "vector": (Role("vector"),),
    "stage": (Role("tile"),),
    "channels": (Role("tile"),),
    "finish": (Role("tile"),),
    "warps": (Role("warps"),),
}


def vendor_space(detail: VendorConv) -> Space:
    """The knobs of a site."""
    is_single = detail.base.dtype == "float32"
    return Space(
        {
            "algorithm": ("measured", "guessed"),
            "vector": (8, 4) if detail.base.group_in <= 4 else (8,),
            "stage": (4096, 8192, 2048),
            "channels": (64, 32, 128) if detail.base.group_out > 64 else (64, 32),
            "finish": (4096, 8192),
            "warps": (4, 8),
            ACCURACY: (0, 1, EXACT) if is_single else (0,),
        },
        # more values of a thread spill in chains such as mish twice
        lambda settings: _is_legal(read_knobs(settings)),
    )


def _is_legal(knobs: VendorSettings) -> bool:
    return knobs.finish <= _MOST_OF_A_WARP * knobs.warps


def vendor_cost_ms(detail: VendorConv, settings: Settings, device: Device) -> float:
    """Time of staging, of the library's kernel, and of what follows, one after the other."""
    knobs = read_knobs(settings)
    base = detail.base
    is_half = knobs.is_scaled(detail) or base.dtype != "float32"
    between = 2 if is_half else DTYPE_BYTES[base.dtype]
    size = DTYPE_BYTES[base.dtype]
    staged, made = staged_elements(detail, knobs)
    bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
    read = base.images * base.channels_in * base.inputs
    written = base.images * base.channels_out * base.positions
    stage_s = (read * size * (1 + len(detail.prologue_steps)) + staged * between) / bandwidth
    extra = sum(written * size for steps in base.operand_steps if 0 not in steps[2:])
    finish_s = (made * between + written * size + extra) / bandwidth
    seconds = stage_s + finish_s
    library_s = max(_product_s(detail, knobs, device), (staged + made) * between / bandwidth)
    if knobs.algorithm == "measured":
        library_s *= MEASURED_GAIN
    # higher rungs have one launch less, which must not make them look cheaper
    is_single = base.dtype == "float32"
    restaging_ms = RESTAGE_MS + device.launch_ms if is_single else 0.0
    return 1e3 * (seconds + library_s) + restaging_ms + 3 * device.launch_ms


def _product_s(detail: VendorConv, knobs: VendorSettings, device: Device) -> float:
    """Time of the library's products."""
    base = detail.base
    unit = {0: _UNITS[base.dtype], 1: "tf32", EXACT: "fp32"}[knobs.accuracy]
    if knobs.accuracy == EXACT:
        return detail.flops / (ceiling(device, unit) * SHARE_OF_FP32)
    wide = min(1.0, knobs.padded_in(detail) / WIDE_CHANNELS)
    wide *= min(1.0, knobs.padded_out(detail) / WIDE_CHANNELS)
    is_deep = detail.is_transposed or base.axes[0].kernel > 1
    share = (SHARE_IN_DEPTH if is_deep else SHARE_OF_CEILING) * wide**0.5
    return detail.flops / (ceiling(device, unit) * share)
