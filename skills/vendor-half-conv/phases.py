"""Transposed convolutions as plain ones without strides.

Output o of an axis of stride S and K taps is o + padding = m * S + r, and gets input m - j through
tap r + j * S: so phase r of all outputs is a convolution of its own taps, and phases with as many
taps are, at one place m, output channels of one convolution. The library does these at twice and
more the rate of its own transposed ones; whoever reads the result finds each output's place and
phase.

Where S does not divide K the first K % S phases of an axis have a tap more than the others, and
each way to choose long or short ones along every axis is a part: a convolution with a result of its
own. No tap is filled up with zeros, which would make NaN of an infinite input that the output does
not get in torch.
"""

from dataclasses import dataclass
from itertools import product
from math import prod

from kmem.codegen.convolutions.windows import WindowAxis
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
    ND: tl.constexpr, NH: tl.constexpr, NW: tl.constexpr,
    FD: tl.constexpr, FH: tl.constexpr, FW: tl.constexpr,
    SCALED: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):
    """(C, M, KD, KH, KW) to (phases, MP, taps of a phase, CP), the taps backwards, zero above M and
    C; a channel is scaled so that its magnitudes add up to less than 2**(TOP - 126).

    The phases are N of each axis from F on, which have as many taps.
    """
    taps: tl.constexpr = KD * KH * KW
    wide: tl.constexpr = (KW - FW + SW - 1) // SW
    high: tl.constexpr = (KH - FH + SH - 1) // SH
    deep: tl.constexpr = (KD - FD + SD - 1) // SD
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
        d = FD + phase // (NH * NW) + (deep - 1 - tap // (high * wide)) * SD
        h = FH + phase // NW % NH + (high - 1 - tap // wide % high) * SH
        column = FW + phase % NW + (wide - 1 - tap % wide) * SW
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

PLACE = (
    "kmem_nhwc_place",
    '''
@triton.jit
def kmem_nhwc_place(
    y, more, image, d, h, w,
    MP: tl.constexpr, YN: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
):
    """Where the channels of outputs, padding added, begin: in y or in `more`, which are one each
    for the ways to choose long or short phases along the axes that have R long ones and others.

    The places of y are YN, YH x YW a plane; along an axis of short phases there is one less.
    """
    # conditions of constants: an axis without long phases has one kind
    short_d = (d % SD >= RD).to(tl.int32) if RD > 0 else d * 0
    short_h = (h % SH >= RH).to(tl.int32) if RH > 0 else h * 0
    short_w = (w % SW >= RW).to(tl.int32) if RW > 0 else w * 0
    part = short_d
    part = part * 2 + short_h if RH > 0 else part
    part = part * 2 + short_w if RW > 0 else part
    deep = tl.where(short_d == 1, SD - RD, RD) if RD > 0 else SD
    high = tl.where(short_h == 1, SH - RH, RH) if RH > 0 else SH
    wide = tl.where(short_w == 1, SW - RW, RW) if RW > 0 else SW
    phase = (d % SD - short_d * RD) * high + h % SH - short_h * RH
    phase = phase * wide + w % SW - short_w * RW
    rows = YH - short_h
    columns = YW - short_w
    place = (d // SD * rows + h // SH) * columns + w // SW
    places = (YN // (YH * YW) - short_d) * rows * columns
    at = (image.to(tl.int64) * places + place) * (deep * high * wide) + phase
    at *= MP
    found = y + at
    parts: tl.constexpr = (2 if RD > 0 else 1) * (2 if RH > 0 else 1) * (2 if RW > 0 else 1)
    for each in tl.static_range(1, parts):
        found = tl.where(part == each, more[each - 1] + at, found)
    return tl.multiple_of(found, 16)  # bytes, which the compiler loses track of
''',
)


@dataclass(frozen=True, slots=True)
class Part:
    """Phases that one convolution makes: along each axis `phases` from `first` on.

    Each has so many `taps` and so many `places`.
    """

    first: tuple[int, ...]
    phases: tuple[int, ...]
    taps: tuple[int, ...]
    places: tuple[int, ...]


def long_phases(axis: WindowAxis) -> int:
    """Phases of an axis that have a tap more than the others; 0 where all have as many."""
    return axis.kernel % axis.stride


def phase_parts(detail: VendorConv) -> list[Part]:
    """The convolutions that make all phases, in the order in which `kmem_nhwc_place` has them."""
    kinds = []
    for axis in detail.base.axes:
        many = long_phases(axis)
        firsts = [(0, many), (many, axis.stride - many)] if many else [(0, axis.stride)]
        kinds.append([(*kind, ceil_div(axis.kernel - kind[0], axis.stride)) for kind in firsts])
    sizes = [axis.size for axis in detail.base.axes]
    parts = []
    for chosen in product(*kinds):
        taps = tuple(count for *_, count in chosen)
        places = tuple(size + count - 1 for size, count in zip(sizes, taps, strict=True))
        first = tuple(kind[0] for kind in chosen)
        parts.append(Part(first, tuple(kind[1] for kind in chosen), taps, places))
    return parts


def phase_outputs(detail: VendorConv) -> int:
    """Values of one channel of one image that all parts make."""
    return sum(prod(part.places) * prod(part.phases) for part in phase_parts(detail))


def has_phases(detail: VendorConv) -> bool:
    """Whether a convolution is a transposed one whose phases convolutions may make."""
    base = detail.base
    if not detail.is_transposed or base.groups > 1:
        return False
    if any(axis.dilation > 1 or axis.kernel < axis.stride for axis in base.axes):
        return False
    is_within = all(
        (axis.out - 1 + axis.padding - first) // axis.stride < size
        for part in phase_parts(detail)
        for axis, first, size in zip(base.axes, part.first, part.places, strict=True)
    )
    channels = ceil_div(base.channels_out, 8) * 8
    return is_within and phase_outputs(detail) * channels <= MAX_OFFSET
