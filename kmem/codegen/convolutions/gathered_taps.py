"""Taps gathered beside their channels when an image is staged, so that few channels fill a step.

Of 3 channels a tap has 3 values, which staging pads to 4 and the contraction to whole steps. If
staged position p holds the taps of a row, or of the whole window, at output p, they are one run of
taps * channels: 3 x 3 taps of 3 channels are 27 of 32 instead of 27 of 36 in two steps of 32, and
every copy has 16 bytes. What is staged grows by the taps over the strides. `gather_taps` says which
convolution of staged values is left, whose kernels are those of any other; the gathered channel of
channel c and tap t is c * taps + t, as weights lie.
"""

from dataclasses import replace
from math import prod

from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.windows import WindowAxis

#: What is gathered, and of how many of the last axes.
GATHERS = {"no": 0, "row": 1, "window": 3}
#: More channels than this fill a step of 16 by themselves.
MOST_CHANNELS = 16

STAGE_TAPS = (
    "kmem_stage_taps",
    '''
@triton.jit
def kmem_stage_taps(
    x, largest, exponents, high, low,
    C: tl.constexpr, CP: tl.constexpr, GROUPS: tl.constexpr, GAP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    MD: tl.constexpr, MH: tl.constexpr, MW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
    SKEW: tl.constexpr, TERMS: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(images * GROUPS, C, D, H, W) to (images * GROUPS, PD, PH, PW, CP) with CP >= C * taps.

    T: taps that are gathered along an axis, L: input positions between two of them, M: between two
    staged positions. Staged (0, 0, 0) and tap 0 are input (-BD, -BH, -BW); zero outside. GAP
    elements of others lie between images.
    """
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = pid // (BLOCKS * PD * PH)
    scale = 1.0
    if SCALED:
        chunk = tl.arange(0, CHUNKS_PADDED)
        found = tl.load(largest + plane // GROUPS * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
        exponent = kmem_exponent(tl.max(found, axis=0))
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + plane, exponent)  # every program of the plane writes the same
    source = x + plane.to(tl.int64) * (C * D * H * W)
    if GAP > 0:
        source += (plane // GROUPS).to(tl.int64) * GAP
    target = SKEW + plane.to(tl.int64) * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        gathered = first + tl.arange(0, BLOCK_C)
        c = gathered // (TD * TH * TW)
        d = row // PH * MD + gathered // (TH * TW) % TD * LD - BD
        h = row % PH * MH + gathered // TW % TH * LH - BH
        w = column[None, :] * MW + (gathered % TW * LW)[:, None] - BW
        is_row = (c < C) & (d >= 0) & (d < D) & (h >= 0) & (h < H)
        inside = is_row[:, None] & (w >= 0) & (w < W) & (column < PW)[None, :]
        values = tl.load(
            source + (c * (D * H * W) + (d * H + h) * W)[:, None] + w, mask=inside, other=0.0
        )
        if SCALED:
            values = values * scale
        place = target + column[:, None] * CP + gathered[None, :]
        kmem_store_halves(
            high, low, place, tl.trans(values),
            (column < PW)[:, None] & (gathered < CP)[None, :], TERMS,
        )
''',
)


def can_gather(detail: Convolution) -> bool:
    """Whether a convolution has taps to gather, and so few channels that a step wants them."""
    return detail.taps > 1 and detail.group_in <= MOST_CHANNELS


def gather_choices(detail: Convolution) -> tuple[str, ...]:
    """The ways worth trying, the plain one first."""
    if not can_gather(detail):
        return ("no",)
    has_rows = 1 < detail.axes[2].kernel < detail.taps
    return ("no", "row", "window") if has_rows else ("no", "window")


def gathered_count(detail: Convolution, gather: str) -> int:
    """Taps that lie beside a channel."""
    plain = len(detail.axes) - GATHERS[gather]
    return prod(axis.kernel for axis in detail.axes[plain:])


def gather_taps(detail: Convolution, gather: str) -> Convolution:
    """The convolution of staged values: gathered axes have no taps left, and a stride of 1."""
    if gather == "no":
        return detail
    plain = len(detail.axes) - GATHERS[gather]
    left = [WindowAxis(axis.out, axis.out) for axis in detail.axes[plain:]]
    channels = detail.channels_in * gathered_count(detail, gather)
    return replace(detail, axes=(*detail.axes[:plain], *left), channels_in=channels)


def gather_arguments(detail: Convolution, gather: str) -> str:
    """Launch arguments of kmem_stage_taps: taps, steps between positions and between taps."""
    plain = len(detail.axes) - GATHERS[gather]
    words = []
    for place, (letter, axis) in enumerate(zip("DHW", detail.axes, strict=True)):
        is_plain = place < plain
        taps, step = (1, 1) if is_plain else (axis.kernel, axis.stride)
        words.append(f"T{letter}={taps}, M{letter}={step}, L{letter}={axis.dilation}")
    return ", ".join(words)
