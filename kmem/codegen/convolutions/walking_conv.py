"""The product of staged operands by programs that walk over the tiles and keep the filter.

Over few channels a sum is short: a program of one tile spends its time on waiting for the first
loads, on the filter that every other program loads too, and on its own start. Here the whole filter
is loaded once, and while a tile is multiplied, follows its chain and is stored, the image of the
next one arrives: the loop over tiles is the one that is pipelined.

The contraction is padded to sixteens and taken in pieces, the binary digits of its length: 72
becomes 64 and 16. Every product is waited for before the next begins (so Triton 3.6 and 3.9 compile
them outside a pipelined loop over steps), so that a sum wants as few as it can have.

Covered: one group, all output channels in a tile, sums that need no promotion, no pooled windows.
Source of the form: an H200's counters, 2026-11-30, KernelBench level 2's 67, 69 and 73, 8 to 64
channels and three products in steps of 32: 8 warps an SM issued 0.8 to 1.0 instructions a clock,
the tensor cores were busy for a fifth of the time, memory for a third. Since then compiled for
sm_90 by Triton 3.6 and 3.9 and looked at; not measured.
"""

from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.staged_operands import (
    StagedSettings,
    contraction,
    padded_outputs,
)
from kmem.problem.sizes import ceil_div
from kmem.records import Device

#: Fewest positions of a tile that walking programs take; others take at least twice as many.
FEWEST_POSITIONS = 32
#: Of a thread, registers beside sums and filter. Source: 64 to 118 with chains of a hardswish, by
#: Triton 3.9 for sm_90, which keeps the filter in registers where 3.6 has it in shared memory.
_OTHER_REGISTERS, _MOST_REGISTERS = 80, 250

WALKING = (
    "kmem_walking_conv",
    '''
@triton.jit
def kmem_walking_conv(
    x, x_low, x_exponents, w, w_low, w_exponents, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    CP: tl.constexpr, PADDED_K: tl.constexpr, PIECES: tl.constexpr, VECTOR: tl.constexpr,
    SKEW: tl.constexpr, TERMS: tl.constexpr, SCALED: tl.constexpr, WIDEN: tl.constexpr,
    TURNED: tl.constexpr, KEPT_IN: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr,
    PROGRAMS: tl.constexpr, AHEAD: tl.constexpr,
):
    """Every PROGRAMS-th tile of positions, with all output channels, as kmem_staged_conv makes one,
    while those of the next AHEAD - 1 are loaded. PIECES: first and length of each piece of K.
    """
    position_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M == BLOCK_CO) and (N % BLOCK_P == 0)
    sum_rows: tl.constexpr = BLOCK_CO if TURNED else BLOCK_P
    sum_columns: tl.constexpr = BLOCK_P if TURNED else BLOCK_CO
    is_whole: tl.constexpr = PADDED_K == KD * KH * KW * CP
    channels = tl.arange(0, BLOCK_CO)
    at_w = SKEW + channels[:, None] * PADDED_K
    weights = ()
    low_weights = ()
    for piece in tl.static_range(len(PIECES)):
        k = PIECES[piece][0] + tl.arange(0, PIECES[piece][1])
        weight = tl.load(w + at_w + k[None, :])
        weights = weights + (weight.to(tl.float32) if WIDEN else weight,)
        if TERMS == 3:
            low_weights = low_weights + (tl.load(w_low + at_w + k[None, :]),)
    w_exponent = tl.load(w_exponents + channels) if SCALED else 0
    for tile in tl.range(
        tl.program_id(0), position_blocks * BATCH, PROGRAMS, num_stages=AHEAD
    ):
        positions = tile % position_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
        batch = tile // position_blocks
        # positions past the last compute it again, which is never stored
        p = tl.minimum(positions, N - 1)
        first = (p // (OH * OW) * SD * H + p // OW % OH * SH) * W + p % OW * SW
        at_x = batch.to(tl.int64) * (D * H * W * CP) + SKEW
        part = tl.zeros((sum_rows, sum_columns), tl.float32)
        cross = tl.zeros((sum_rows, sum_columns), tl.float32)
        for piece in tl.static_range(len(PIECES)):
            k = PIECES[piece][0] + tl.arange(0, PIECES[piece][1])
            tap = k // CP
            moved = (tap // (KH * KW) * LD * H + tap // KW % KH * LH) * W + tap % KW * LW
            from_x = tl.max_contiguous(tl.multiple_of(moved * CP + k % CP, VECTOR), VECTOR)
            place = first[:, None] * CP + from_x[None, :]
            inside = None if is_whole else (k < KD * KH * KW * CP)[None, :]
            nothing = None if is_whole else 0.0
            image = tl.load(
                x + at_x + place, mask=inside, other=nothing, cache_modifier=KEPT_IN
            )
            if WIDEN:
                image = image.to(tl.float32)
            part = kmem_multiply_turned(image, weights[piece], part, TURNED)
            if TERMS == 3:
                low_image = tl.load(
                    x_low + at_x + place, mask=inside, other=nothing, cache_modifier=KEPT_IN
                )
                cross = kmem_multiply_turned(image, low_weights[piece], cross, TURNED)
                cross = kmem_multiply_turned(low_image, weights[piece], cross, TURNED)
        if TERMS == 3:
            part += cross * 0.00048828125
        sums = part if TURNED else tl.trans(part)
        if SCALED:
            exponent = tl.load(x_exponents + batch) + tl.zeros((BLOCK_P,), tl.int32)
            sums = kmem_unscale(sums, w_exponent, exponent)
        kmem_store_positions(
            out, sums, batch, channels, positions,
            extra + (tile % position_blocks,), AFTER, STEPS, PLACE, M, N,
            BATCH, BATCH_INNER, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, even,
        )
''',
)


def can_walk(detail: Convolution) -> bool:
    """Whether programs may walk over the tiles of a convolution at all."""
    return detail.groups == 1 and not detail.is_pooled


def programs_at_once(detail: Convolution, knobs: StagedSettings, device: Device) -> int:
    """How many programs the device runs at a time at a setting; 0 if they cannot walk at it.

    More would not begin before others end.

    Args:
        detail: with its taps gathered.
    """
    is_one_tile = padded_outputs(detail, knobs.block_co) == knobs.block_co
    if not (can_walk(detail) and is_one_tile):
        return 0
    registers, shared = _registers(detail, knobs, device), _shared_bytes(detail, knobs)
    if registers > _MOST_REGISTERS or shared > device.shared_bytes_per_block:
        return 0
    threads = knobs.warps * device.warp_size
    by_registers = device.registers_per_sm // (registers * threads)
    return device.sm_count * min(by_registers, device.shared_bytes_per_sm // shared)


def _registers(detail: Convolution, knobs: StagedSettings, device: Device) -> int:
    """Registers of a thread: sums, the filter, and the rest."""
    threads = knobs.warps * device.warp_size
    sums = knobs.block_p * knobs.block_co * (1 + (knobs.terms == 3))
    return (sums + filter_bytes(detail, knobs) // 4) // threads + _OTHER_REGISTERS


def filter_bytes(detail: Convolution, knobs: StagedSettings) -> int:
    """Bytes of the filter that a program keeps."""
    return knobs.block_co * contraction(detail, knobs.depth) * 2 * knobs.parts


def _shared_bytes(detail: Convolution, knobs: StagedSettings) -> int:
    """Shared memory of a program: images of the tiles ahead, the filter, and a result."""
    image = knobs.block_p * contraction(detail, knobs.depth) * 2 * knobs.parts
    result = knobs.block_p * knobs.block_co * 4
    return knobs.stages * image + filter_bytes(detail, knobs) + result


def pieces(length: int) -> tuple[tuple[int, int], ...]:
    """First and length of each piece of a contraction: powers of two, the longest first."""
    digits = [1 << place for place in reversed(range(length.bit_length())) if length >> place & 1]
    return tuple((sum(digits[:place]), digit) for place, digit in enumerate(digits))


def walked_tiles(detail: Convolution, knobs: StagedSettings) -> int:
    """Tiles of all images."""
    return ceil_div(detail.positions, knobs.block_p) * detail.batches
