"""Transposed convolutions with strides as convolutions without.

Output o of an axis of stride S and K taps is o + padding = m * S + r, and gets input m - j through
tap r + j * S: so phase r of all outputs is a convolution of K / S taps, and the phases of one place
m are output channels of one convolution. The library does these at twice and more the rate of its
own transposed ones; whoever reads the result finds each output's place and phase.

Covered: strides that divide the taps. Others would need taps of zeros, which make NaN of an
infinite input that the output does not get in torch.
"""

from math import prod

from kmem.problem.sizes import ceil_div

from .vendor import MAX_OFFSET, VendorConv

WEIGHTS = (
    "kmem_nhwc_phase_weights",
    '''
@triton.jit
def kmem_nhwc_phase_weights(
    w, exponents, packed,
    C: tl.constexpr, CP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    SCALED: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):
    """(C, M, KD, KH, KW) to (phases, MP, taps of a phase, CP), the taps backwards, zero above M and
    C; a channel is scaled so that its magnitudes add up to less than 2**(TOP - 126).
    """
    taps: tl.constexpr = KD * KH * KW
    wide: tl.constexpr = KW // SW
    high: tl.constexpr = KH // SH
    deep: tl.constexpr = KD // SD
    row = tl.program_id(0)
    m = row % MP
    phase = row // MP
    end = tl.where(m < M, C, 0)  # a row above M has no channels
    w += m * taps
    scale = 1.0
    if SCALED:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, C * taps, BLOCK):
            k = start + tl.arange(0, BLOCK)
            place = k // taps * (M * taps) + k % taps
            size = tl.abs(tl.load(w + place, mask=k < end * taps, other=0.0))
            total += tl.where(size < float("inf"), size, 0.0)
        # a little more than they are, for values and sums are rounded
        bits = kmem_magnitude_bits(tl.sum(total, axis=0) * 1.00390625)
        exponent = tl.minimum(TOP - (bits >> 23), 126)
        scale = kmem_power_of_two(exponent)
        if phase == 0:
            tl.store(exponents + m, exponent)
    for start in range(0, CP * deep * high * wide, BLOCK):
        k = start + tl.arange(0, BLOCK)
        c = k % CP
        tap = k // CP
        d = phase // (SH * SW) + (deep - 1 - tap // (high * wide)) * SD
        h = phase // SW % SH + (high - 1 - tap // wide % high) * SH
        column = phase % SW + (wide - 1 - tap % wide) * SW
        inside = (c < end) & (tap < deep * high * wide)
        place = c * (M * taps) + (d * KH + h) * KW + column
        values = tl.load(w + place, mask=inside, other=0.0).to(tl.float32) * scale
        if SCALED and packed.dtype.element_ty == tl.float16:
            # none that is not zero becomes zero: it may meet an infinity
            least = tl.where(values < 0.0, -5.9604644775390625e-08, 5.9604644775390625e-08)
            is_lost = (values != 0.0) & (tl.abs(values) < 5.9604644775390625e-08)
            values = tl.where(is_lost, least, values)
        target = packed + (row * (deep * high * wide) + tap) * CP + c
        tl.store(target, values.to(packed.dtype.element_ty), mask=tap < deep * high * wide)
''',
)


def phase_taps(detail: VendorConv) -> tuple[int, ...]:
    """Taps of a phase along each axis."""
    return tuple(axis.kernel // axis.stride for axis in detail.base.axes)


def phase_places(detail: VendorConv) -> tuple[int, ...]:
    """Places along each axis of the convolution that makes the phases."""
    taps = phase_taps(detail)
    return tuple(axis.size + count - 1 for axis, count in zip(detail.base.axes, taps, strict=True))


def count_phases(detail: VendorConv) -> int:
    """Phases of one place."""
    return prod(axis.stride for axis in detail.base.axes)


def has_phases(detail: VendorConv) -> bool:
    """Whether a convolution is a transposed one whose phases one convolution makes."""
    base = detail.base
    if not detail.is_transposed or base.groups > 1 or count_phases(detail) == 1:
        return False
    if any(axis.dilation > 1 or axis.kernel % axis.stride for axis in base.axes):
        return False
    places = phase_places(detail)
    is_within = all(
        (axis.out - 1 + axis.padding) // axis.stride < size
        for axis, size in zip(base.axes, places, strict=True)
    )
    channels = ceil_div(base.channels_out, 8) * 8
    return is_within and prod(places) * count_phases(detail) * channels <= MAX_OFFSET
