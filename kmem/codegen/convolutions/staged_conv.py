"""Triton text for convolutions whose input is staged channels-last in half precision first.

The product then loads whole vectors. The staged operands are staged_operands.py's;
`kmem_staged_conv` multiplies them, (positions x taps * channels) by (taps * channels x output
channels). One fp16 keeps as many significant bits of a scaled fp32 number as TF32 does (11), at
twice its rate and half its bytes; with TERMS=3 a second fp16 holds the next 11 bits, and three
products give what exact fp32 gives. Half precision is multiplied as it is.

Covered: values that are not finite give what they give in a sum of products. Not covered: an image
some of whose finite values are below 2**-29 (TERMS=3: 2**-40) of its largest keeps these with an
absolute error of that size.

Source: Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores", IJHPCA 36(4),
2022; PTX ISA, "Alternate Floating-Point Data Formats" (TF32: 10 explicit bits of significand, as
fp16).
"""

from collections.abc import Callable
from dataclasses import replace

from kmem.codegen.chains.approximate import approximate
from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.ports import AFTER, hand_in
from kmem.codegen.convolutions.boxed_conv import ALLOCATE, BOXED, box_programs, box_tiles
from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.gathered_taps import STAGE_TAPS, gather_taps
from kmem.codegen.convolutions.launching import output_arguments, window_arguments
from kmem.codegen.convolutions.norming import leave_moments, norm_kernels, write_normed_launcher
from kmem.codegen.convolutions.staged_operands import (
    LARGEST,
    PACK_FILTER,
    STAGE,
    StagedSettings,
    contraction,
    is_scaled,
    padded_outputs,
    staged_channels,
    staged_sizes,
    write_packing,
    write_staging,
)
from kmem.codegen.convolutions.walking_conv import WALKING, pieces, walked_tiles
from kmem.codegen.text.accumulate import ADD_COMPENSATED, PROMOTE_ELEMENTS, steps_in_chain
from kmem.codegen.text.calls import write_launch
from kmem.codegen.text.parts import SCALES, STORE_HALVES, STORE_PARTS
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission

_MULTIPLY = (
    "kmem_multiply_turned",
    '''
@triton.jit
def kmem_multiply_turned(image, weight, acc, TURNED: tl.constexpr):
    """acc + image (positions, k) times weight (channels, k), which TURNED has in the rows."""
    if TURNED:
        acc = tl.dot(weight, tl.trans(image), acc)
    else:
        acc = tl.dot(image, tl.trans(weight), acc)
    return acc
''',
)

#: As kmem_store_tile, whose offsets have 64 bits: here those of an image fit 32, which leaves the
#: sums more registers.
_STORE = (
    "kmem_store_positions",
    '''
@triton.jit
def kmem_store_positions(
    out, acc, batch, rows, columns,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Write a tile of sums, channels by positions, into the result after the epilogue."""
    if AFTER is not None:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    if PLACE is not None:
        rows, columns = PLACE(rows, columns, N)
    place = (
        out
        + (batch // BATCH_INNER).to(tl.int64) * OUT_OUTER
        + (batch % BATCH_INNER).to(tl.int64) * OUT_INNER
    )
    offsets = rows[:, None] * OUT_M + columns[None, :] * OUT_N
    if EVEN:
        tl.store(place + offsets, acc.to(out.dtype.element_ty))
    else:
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(place + offsets, acc.to(out.dtype.element_ty), mask=inside)
''',
)

_CONV = (
    "kmem_staged_conv",
    '''
@triton.jit
def kmem_staged_conv(
    x, x_low, x_exponents, w, w_low, w_exponents, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr,
    CP: tl.constexpr, COP: tl.constexpr, PADDED_K: tl.constexpr,
    VECTOR: tl.constexpr, SKEW: tl.constexpr, TERMS: tl.constexpr,
    PROMOTE: tl.constexpr, COMPENSATED: tl.constexpr,
    SCALED: tl.constexpr, WIDEN: tl.constexpr, TURNED: tl.constexpr, KEPT_IN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of positions by output channels of one image and group; x is staged (.., D, H, W, CP),
    S, L: strides and dilations. PROMOTE: steps in one short sum, 0 for one long sum. COMPENSATED:
    the short sums' total keeps what it loses to rounding. TURNED: sums lie in registers as they are
    stored, along positions. KEPT_IN: the cache modifier of copies.
    """
    channel_blocks: tl.constexpr = COP // BLOCK_CO
    position_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M % BLOCK_CO == 0) and (N % BLOCK_P == 0)
    pid = tl.program_id(0)
    channels = pid % channel_blocks * BLOCK_CO + tl.arange(0, BLOCK_CO)
    tile = pid // channel_blocks % position_blocks
    positions = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    batch = pid // (channel_blocks * position_blocks)
    # positions past the last compute it again, which is never stored
    p = tl.minimum(positions, N - 1)
    # those of one window, of which one value is stored, lie one after the other
    window = p // (WD * WH * WW)
    od = window // (OH // WH * (OW // WW)) * WD + p // (WH * WW) % WD
    oh = window // (OW // WW) % (OH // WH) * WH + p // WW % WH
    ow = window % (OW // WW) * WW + p % WW
    at_x = ((od * SD * H + oh * SH) * W + ow * SW)[:, None] * CP
    at_w = channels[:, None] * PADDED_K
    plane = batch.to(tl.int64) * (D * H * W * CP)
    x += SKEW + plane
    x_low += SKEW + plane
    rows = batch % BATCH_INNER * COP
    w += SKEW + rows * PADDED_K
    w_low += SKEW + rows * PADDED_K
    sum_rows: tl.constexpr = BLOCK_CO if TURNED else BLOCK_P
    sum_columns: tl.constexpr = BLOCK_P if TURNED else BLOCK_CO
    acc = tl.zeros((sum_rows, sum_columns), tl.float32)
    part = tl.zeros((sum_rows, sum_columns), tl.float32)
    cross = tl.zeros((sum_rows, sum_columns), tl.float32)
    lost = tl.zeros((sum_rows, sum_columns), tl.float32)
    for step in range(PADDED_K // BLOCK_K):
        k = step * BLOCK_K + tl.arange(0, BLOCK_K)
        if CP % BLOCK_K == 0:
            tap = step * BLOCK_K // CP
        else:
            tap = k // CP
        moved = (tap // (KH * KW) * LD * H + tap // KW % KH * LH) * W + tap % KW * LW
        from_x = tl.max_contiguous(tl.multiple_of(moved * CP + k % CP, VECTOR), VECTOR)[None, :]
        inside = None if PADDED_K == KD * KH * KW * CP else (k < KD * KH * KW * CP)[None, :]
        nothing = None if PADDED_K == KD * KH * KW * CP else 0.0
        image = tl.load(
            x + at_x + from_x, mask=inside, other=nothing, cache_modifier=KEPT_IN
        )
        weight = tl.load(w + at_w + k[None, :], cache_modifier=KEPT_IN)
        if WIDEN:
            image, weight = image.to(tl.float32), weight.to(tl.float32)
        part = kmem_multiply_turned(image, weight, part, TURNED)
        if TERMS == 3:
            low_weight = tl.load(w_low + at_w + k[None, :], cache_modifier=KEPT_IN)
            low_image = tl.load(
                x_low + at_x + from_x, mask=inside, other=nothing, cache_modifier=KEPT_IN
            )
            cross = kmem_multiply_turned(image, low_weight, cross, TURNED)
            cross = kmem_multiply_turned(low_image, weight, cross, TURNED)
        if PROMOTE > 0:
            # Inside a tensor core a long sum loses its low bits, so `part` stays short. One flat
            # loop: nested, it loses the pipeline.
            if (step + 1) % PROMOTE == 0:
                if COMPENSATED:
                    acc, lost = kmem_add_compensated(acc, lost, part)
                else:
                    acc += part
                part = tl.zeros((sum_rows, sum_columns), tl.float32)
    if TERMS == 3:
        part += cross * 0.00048828125
    if PROMOTE > 0:
        part = acc + (part - lost)
    sums = part if TURNED else tl.trans(part)
    if SCALED:
        exponent = tl.load(x_exponents + batch) + tl.zeros((BLOCK_P,), tl.int32)
        sums = kmem_unscale(sums, tl.load(w_exponents + rows + channels), exponent)
    kmem_store_positions(
        out, sums, batch, channels, positions,
        extra + (tile,), AFTER, STEPS, PLACE, M, N,
        BATCH, BATCH_INNER, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, even,
    )
''',
)

# STORE_PARTS has kmem_round_tf32, which kmem_pack_filter can call.
_KERNELS = (
    SCALES,
    STORE_PARTS,
    STORE_HALVES,
    LARGEST,
    STAGE,
    PACK_FILTER,
    ADD_COMPENSATED,
    _MULTIPLY,
    _STORE,
    _CONV,
)


#: Programs of 8 warps with 64 sums a thread: with some chains behind them they take 129 registers
#: and more by themselves, which leaves an SM one program, whose stores nothing hides. 128 spilled
#: nothing, mish twice included.
_SHARED_WARPS, _SHARED_TILE = 8, 128 * 128
_SHARED_REGISTERS = 128


def promote_steps(detail: Convolution, knobs: StagedSettings) -> int:
    """Steps of K in one short sum; 0 where no sum has to be promoted.

    That is where the whole sum is short, or as exact as its contract asks.
    """
    is_wanted = knobs.terms == 3 or knobs.accuracy > 0
    return steps_in_chain(knobs.block_k) if is_wanted and is_long(detail) else 0


def is_compensated(knobs: StagedSettings) -> bool:
    """Whether the total of promoted sums keeps what it loses."""
    return knobs.terms == 3 and knobs.accuracy > 0


def is_long(detail: Convolution) -> bool:
    """Whether the sum of an output is longer than one chain should be."""
    return detail.taps * staged_channels(detail) > PROMOTE_ELEMENTS


def emit_staged(detail: Convolution, knobs: StagedSettings) -> Emission:
    """The kernels and the launcher at one setting."""
    detail = replace(detail, epilogue=follow_staged(detail, knobs))
    leaving = leave_moments(detail)
    kernel, write = _product_of(knobs)
    statements = [
        *write_staging(detail, knobs),
        *write_packing(detail, knobs),
        *write(gather_taps(leaving, knobs.gather), knobs),
    ]
    others = {_CONV: kernel, **({STAGE: STAGE_TAPS} if knobs.gather != "no" else {})}
    kernels = tuple(others.get(each, each) for each in _KERNELS)
    written = hand_in(kernels, {AFTER: leaving.epilogue})
    return Emission(
        (*written, *norm_kernels(detail), *detail.finishing),
        write_normed_launcher(detail, statements, knobs.block_p),
        own_size_only=is_scaled(detail) and knobs.terms == 1,
    )


def _product_of(
    knobs: StagedSettings,
) -> tuple[tuple[str, str], Callable[[Convolution, StagedSettings], list[str]]]:
    """The kernel that multiplies at a setting, and what writes its launch."""
    if knobs.has_boxes:
        return BOXED, _write_boxed
    return (WALKING, _write_walking) if knobs.walks else (_CONV, _write_product)


def follow_staged(detail: Convolution, knobs: StagedSettings) -> Epilogue:
    """What follows: approximated below the last rung of exact products."""
    is_exact = knobs.terms == 3 and knobs.accuracy > 0
    return detail.epilogue if is_exact else approximate(detail.epilogue)


def _most_registers(detail: Convolution, knobs: StagedSettings) -> str:
    """A launch option: as many registers of a thread as let two programs share an SM.

    Not of boxes: with Triton 3.6 that spilled 136 bytes, and with 3.9 16 behind mish twice.
    """
    is_alone = promote_steps(detail, knobs) == 0 and knobs.sums_along == "positions"
    if knobs.has_boxes:
        return ""
    is_shared = is_alone and knobs.block_p * knobs.block_co == _SHARED_TILE
    return f", maxnreg={_SHARED_REGISTERS}" if is_shared and knobs.warps == _SHARED_WARPS else ""


#: Cache modifiers by where copies are kept. Of 16 bytes, L2 alone is Triton's choice.
_KEPT_IN = {"l2": "", "l1": ".ca"}


#: What all three kernels read.
_OPERANDS = "high, low, exponents, w_high, w_low, w_exponents"


def _write_product(detail: Convolution, knobs: StagedSettings) -> list[str]:
    """The launch that multiplies the staged operands."""
    padded_c, padded_out = staged_channels(detail), padded_outputs(detail, knobs.block_co)
    tiles = padded_out // knobs.block_co * ceil_div(detail.positions, knobs.block_p)
    launch = write_launch(
        "kmem_staged_conv",
        tiles * detail.batches,
        f"{_OPERANDS}, {detail.target}",
        *output_arguments(detail),
        window_arguments(detail, staged_sizes(detail)),
        ", ".join(f"W{axis}={size}" for axis, size in zip("DHW", detail.window, strict=True)),
        f"VECTOR={min(8, padded_c)}, SKEW={knobs.skew}, KEPT_IN={_KEPT_IN[knobs.kept_in]!r}",
        *_shared_arguments(detail, knobs),
    )
    return [launch]


def _write_boxed(detail: Convolution, knobs: StagedSettings) -> list[str]:
    """The same with operands that come as boxes."""
    programs = box_programs(detail, knobs)
    launch = write_launch(
        "kmem_boxed_conv",
        programs,
        f"{_OPERANDS}, {detail.target}",
        *output_arguments(detail),
        window_arguments(detail, staged_sizes(detail)),
        f"TILES={box_tiles(detail, knobs)}, PROGRAMS={programs}",
        *_shared_arguments(detail, knobs),
    )
    return [ALLOCATE, launch]


def _write_walking(detail: Convolution, knobs: StagedSettings) -> list[str]:
    """The same by programs that walk over the tiles and keep the filter."""
    programs = min(knobs.programs, walked_tiles(detail, knobs))
    padded_k = contraction(detail, knobs.depth)
    launch = write_launch(
        "kmem_walking_conv",
        programs,
        f"{_OPERANDS}, {detail.target}",
        *output_arguments(detail),
        window_arguments(detail, staged_sizes(detail)),
        f"CP={staged_channels(detail)}, PADDED_K={padded_k}, PIECES={pieces(padded_k)!r}",
        f"VECTOR={min(8, staged_channels(detail))}, SKEW={knobs.skew}",
        f"KEPT_IN={_KEPT_IN[knobs.kept_in]!r}, PROGRAMS={programs}, AHEAD={knobs.stages}",
        *_arithmetic_arguments(detail, knobs),
        f"num_warps={knobs.warps}",
        detail.options,
    )
    return [launch]


def _arithmetic_arguments(detail: Convolution, knobs: StagedSettings) -> tuple[str, ...]:
    """Launch arguments that all three kernels take."""
    widen = "False" if knobs.terms == 3 else "x.is_cpu"
    return (
        f"TERMS={knobs.terms}, SCALED={is_scaled(detail)}, WIDEN={widen}, "
        f"TURNED={knobs.sums_along == 'positions'}",
        f"BLOCK_P={knobs.block_p}, BLOCK_CO={knobs.block_co}",
    )


def _shared_arguments(detail: Convolution, knobs: StagedSettings) -> tuple[str, ...]:
    """Launch arguments of the kernels whose loop is over steps."""
    padded_out = padded_outputs(detail, knobs.block_co)
    return (
        f"CP={staged_channels(detail)}, COP={padded_out}, "
        f"BLOCK_K={knobs.block_k}, PADDED_K={contraction(detail, knobs.depth)}",
        f"PROMOTE={promote_steps(detail, knobs)}, COMPENSATED={is_compensated(knobs)}",
        *_arithmetic_arguments(detail, knobs),
        f"num_warps={knobs.warps}, num_stages={knobs.stages}{_most_registers(detail, knobs)}",
        detail.options,
    )
