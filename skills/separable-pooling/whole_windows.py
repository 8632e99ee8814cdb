"""Pooling as Triton text, whole windows at a time.

It serves windows that strips do not take, being too wide to unroll or to gather.

A program makes `block` neighbouring outputs. Their windows' columns are a tile (outputs, taps of a
row, padded to a power of two), so that windows which follow each other without a gap are read as
one run; the tile is combined over the window's rows by a loop and along itself once, at the end.
Columns that windows share are read again, from L1. One kernel text serves every structure and size.
"""

from dataclasses import dataclass
from math import prod

from kmem.codegen.convolutions.stencil import Stencil
from kmem.codegen.convolutions.strip_tuning import WARP_THREADS, idle_factor, overlapped_s, start_s
from kmem.codegen.rates import issues_per_s
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch, write_launch_function
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Settings, Site, Space
from kmem.records import Device

#: Columns of one window's row, at most: the tile of the fewest outputs then still fits in
#: registers.
MAX_WINDOW_COLUMNS = 1024
#: Of the tile, each with its address: with 32 a thread has 222 registers.
MIN_THREAD_VALUES, MAX_THREAD_VALUES = 4, 16
LOAD_INSTRUCTIONS = 6  # of one element of the tile: address, predicate, load, combine
#: Launch argument -> attribute of an axis, for each of depth, height and width.
_SIZES = {"": "size", "O": "out", "K": "kernel", "S": "stride", "B": "padding", "L": "dilation"}

_KERNELS = (
    (
        "kmem_either",
        '''
@triton.jit
def kmem_either(a, b, MAX: tl.constexpr):
    """Two values of a window as one."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL) if MAX else a + b


@triton.jit
def kmem_larger(a, b):
    """The larger of two values; NaN if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def kmem_covered(
    place,
    SIZE: tl.constexpr, K: tl.constexpr, S: tl.constexpr, B: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
):
    """Elements of an axis that the window of an output covers, as torch counts them: of the input,
    or of the padded input.
    """
    begin = place * S - B
    return tl.minimum(begin + K, SIZE + B * COUNT_PADDING) - tl.maximum(begin, -B * COUNT_PADDING)
''',
    ),
    (
        "kmem_window_pool",
        '''
@triton.jit
def kmem_window_pool(
    x, y,
    COUNT: tl.constexpr, IMAGE: tl.constexpr, X_GAP: tl.constexpr, Y_GAP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    MAX: tl.constexpr, DIVISOR: tl.constexpr, COUNT_PADDING: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):
    """(planes, D, H, W) to (planes, OD, OH, OW), COUNT outputs in all, IMAGE of each image. K, S,
    B, L: kernel, strides, borders (padding), dilations. GAP: elements of others between images.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ow = place % OW
    oh = place // OW % OH
    od = place // (OW * OH) % OD
    plane = (place // (OW * OH * OD)).to(tl.int64) * (D * H * W)
    target = y + place
    if X_GAP > 0:
        plane += (place // IMAGE).to(tl.int64) * X_GAP
    if Y_GAP > 0:
        target += (place // IMAGE).to(tl.int64) * Y_GAP
    tap = tl.arange(0, TAPS)
    w = (ow * SW - BW)[:, None] + (tap * LW)[None, :]
    inside = (w >= 0) & (w < W) & (tap < KW)[None, :] & (place < COUNT)[:, None]
    nothing = -float("inf") if MAX else 0.0
    best = tl.full((BLOCK, TAPS), nothing, tl.float32)
    for row in range(KD * KH):
        d = od * SD - BD + row // KH * LD
        h = oh * SH - BH + row % KH * LH
        there = (d >= 0) & (d < D) & (h >= 0) & (h < H)
        at = (plane + (d * H + h) * W)[:, None] + w
        best = kmem_either(
            best, tl.load(x + at, mask=inside & there[:, None], other=nothing).to(tl.float32), MAX
        )
    if MAX:
        value = tl.reduce(best, 1, kmem_larger)
    else:
        value = tl.sum(best, axis=1)
        if DIVISOR > 0:
            value = value * (1.0 / DIVISOR)
        else:
            covered = (
                kmem_covered(od, D, KD, SD, BD, COUNT_PADDING)
                * kmem_covered(oh, H, KH, SH, BH, COUNT_PADDING)
            )
            value = value / tl.maximum(
                covered * kmem_covered(ow, W, KW, SW, BW, COUNT_PADDING), 1
            ).to(tl.float32)
    tl.store(target, value.to(y.dtype.element_ty), mask=place < COUNT)
''',
    ),
)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """The knobs: outputs and warps of a program."""

    block: int
    warps: int


def read_windows(settings: Settings) -> WindowSettings:
    """The settings of whole windows as a record."""
    return read_settings(WindowSettings, settings)


def window_space(stencil: Stencil) -> Space:
    """Outputs and warps of a program.

    They are such that a thread has some loads under way and keeps its tile in registers.
    """
    taps = _row_taps(stencil)

    def is_legal(settings: Settings) -> bool:
        knobs = read_windows(settings)
        values = knobs.block * taps / (WARP_THREADS * knobs.warps)
        return MIN_THREAD_VALUES <= values <= MAX_THREAD_VALUES

    return Space({"block": (1, 4, 16, 32, 64, 128, 256), "warps": (1, 2, 4, 8)}, is_legal)


def _row_taps(stencil: Stencil) -> int:
    """Columns of the tile: taps of a row, padded."""
    return next_power_of_two(stencil.axes[2].kernel)


def window_cost_ms(site: Site, stencil: Stencil, knobs: WindowSettings, device: Device) -> float:
    """Time of a setting, as in strip_tuning.py.

    It is the slowest of memory, issue slots and starting programs, plus a share of the others.
    """
    programs = ceil_div(prod(stencil.output), knobs.block)
    rows = stencil.axes[0].kernel * stencil.axes[1].kernel
    loads = programs * knobs.block * _row_taps(stencil) * rows
    seconds = (
        site.bytes / device.read_bytes_per_s,
        loads * LOAD_INSTRUCTIONS / device.warp_size / issues_per_s(device),
        start_s(programs, device),
    )
    idle = idle_factor(programs, knobs.warps, device)
    return 1e3 * idle * overlapped_s(seconds) + device.launch_ms


def emit_windows(stencil: Stencil, knobs: WindowSettings) -> Emission:
    """The kernels and `launch(x)`."""
    count = prod(stencil.output)
    sizes = (
        ", ".join(
            f"{name}{letter}={getattr(axis, attribute)}"
            for letter, axis in zip("DHW", stencil.axes, strict=True)
        )
        for name, attribute in _SIZES.items()
    )
    launch = write_launch(
        "kmem_window_pool",
        ceil_div(count, knobs.block),
        "x, y",
        f"COUNT={count}, IMAGE={prod(stencil.output[1:])}, X_GAP={stencil.gaps[0]}, "
        f"Y_GAP={stencil.gaps[1]}",
        *sizes,
        f"MAX={stencil.combine == 'max'}, DIVISOR={stencil.divisor}, "
        f"COUNT_PADDING={int(stencil.count_padding)}",
        f"TAPS={_row_taps(stencil)}, BLOCK={knobs.block}, num_warps={knobs.warps}",
    )
    statements = [
        write_allocation("y", stencil.result, "x"),
        launch,
        "return y",
    ]
    return Emission(_KERNELS, write_launch_function(["x"], statements))
