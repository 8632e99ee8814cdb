"""The product of staged operands with tiles that come as boxes, copied by the hardware (TMA).

With a stride of 1 the staged position that an output reads through a tap lies a fixed number of
positions behind its own, so a tile of consecutive staged positions is one box of rows for every
tap: no thread computes an address, and one issues the copy. Positions of the border between two
rows of the image are multiplied too and not stored, which is less than two in a hundred of 126.

`programs` of the settings: 0 for one program a tile; else so many walk over the tiles and make
their descriptors once. Of a descriptor made in the kernel Triton keeps the 128 bytes in memory that
its allocator gives (`ALLOCATE`).

Source: Triton language reference, tl.make_tensor_descriptor: the base aligned to 16 bytes, strides
multiples of 16 bytes, the last axis dense. Compiled for sm_90 by Triton 3.6 and 3.9; not measured.
"""

from math import prod

from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.staged_operands import (
    StagedSettings,
    contraction,
    padded_outputs,
    staged_channels,
    staged_sizes,
)
from kmem.problem.sizes import ceil_div

_MAX_ROWS = 2**31 - 1  # coordinates of a box have 32 bits

#: A statement of the launcher: descriptors that kernels make need memory.
ALLOCATE = (
    "triton.set_allocator("
    "lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=x.device))"
)

BOXED = (
    "kmem_boxed_conv",
    '''
@triton.jit
def kmem_boxed_conv(
    x, x_low, x_exponents, w, w_low, w_exponents, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    CP: tl.constexpr, COP: tl.constexpr, PADDED_K: tl.constexpr, TERMS: tl.constexpr,
    PROMOTE: tl.constexpr, COMPENSATED: tl.constexpr,
    SCALED: tl.constexpr, WIDEN: tl.constexpr, TURNED: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr, BLOCK_K: tl.constexpr,
    TILES: tl.constexpr, PROGRAMS: tl.constexpr,
):
    """Every PROGRAMS-th tile of staged positions by output channels, as kmem_staged_conv makes one;
    x is staged (BATCH, D, H, W, CP), and S, the strides, are 1.
    """
    channel_blocks: tl.constexpr = COP // BLOCK_CO
    # from where the first output lies to where the last does
    span: tl.constexpr = ((OD - 1) * H + OH - 1) * W + OW
    position_blocks: tl.constexpr = (span + BLOCK_P - 1) // BLOCK_P
    sum_rows: tl.constexpr = BLOCK_CO if TURNED else BLOCK_P
    sum_columns: tl.constexpr = BLOCK_P if TURNED else BLOCK_CO
    images = tl.make_tensor_descriptor(
        x, shape=[BATCH * D * H * W, CP], strides=[CP, 1], block_shape=[BLOCK_P, BLOCK_K]
    )
    weights = tl.make_tensor_descriptor(
        w, shape=[BATCH_INNER * COP, PADDED_K], strides=[PADDED_K, 1],
        block_shape=[BLOCK_CO, BLOCK_K],
    )
    if TERMS == 3:
        low_images = tl.make_tensor_descriptor(
            x_low, shape=[BATCH * D * H * W, CP], strides=[CP, 1], block_shape=[BLOCK_P, BLOCK_K]
        )
        low_weights = tl.make_tensor_descriptor(
            w_low, shape=[BATCH_INNER * COP, PADDED_K], strides=[PADDED_K, 1],
            block_shape=[BLOCK_CO, BLOCK_K],
        )
    for tile in range(tl.program_id(0), TILES, PROGRAMS):
        first_channel = tile % channel_blocks * BLOCK_CO
        first = tile // channel_blocks % position_blocks * BLOCK_P
        batch = tile // (channel_blocks * position_blocks)
        rows = batch % BATCH_INNER * COP
        acc = tl.zeros((sum_rows, sum_columns), tl.float32)
        part = tl.zeros((sum_rows, sum_columns), tl.float32)
        cross = tl.zeros((sum_rows, sum_columns), tl.float32)
        lost = tl.zeros((sum_rows, sum_columns), tl.float32)
        for step in range(PADDED_K // BLOCK_K):
            tap = step * BLOCK_K // CP
            moved = (tap // (KH * KW) * LD * H + tap // KW % KH * LH) * W + tap % KW * LW
            at_x = batch * (D * H * W) + first + moved
            image = images.load([at_x, step * BLOCK_K % CP])
            weight = weights.load([rows + first_channel, step * BLOCK_K])
            if WIDEN:
                image, weight = image.to(tl.float32), weight.to(tl.float32)
            part = kmem_multiply_turned(image, weight, part, TURNED)
            if TERMS == 3:
                low_weight = low_weights.load([rows + first_channel, step * BLOCK_K])
                low_image = low_images.load([at_x, step * BLOCK_K % CP])
                cross = kmem_multiply_turned(image, low_weight, cross, TURNED)
                cross = kmem_multiply_turned(low_image, weight, cross, TURNED)
            if PROMOTE > 0:
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
        channels = first_channel + tl.arange(0, BLOCK_CO)
        if SCALED:
            exponent = tl.load(x_exponents + batch) + tl.zeros((BLOCK_P,), tl.int32)
            sums = kmem_unscale(sums, tl.load(w_exponents + rows + channels), exponent)
        staged = first + tl.arange(0, BLOCK_P)
        od = staged // (H * W)
        oh = staged // W % H
        ow = staged % W
        is_output = (od < OD) & (oh < OH) & (ow < OW)
        positions = tl.where(is_output, (od * OH + oh) * OW + ow, N)  # N: stored nowhere
        kmem_store_positions(
            out, sums, batch, channels, positions,
            extra, AFTER, STEPS, PLACE, M, N,
            BATCH, BATCH_INNER, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, False,
        )
''',
)


def can_box(detail: Convolution) -> bool:
    """Whether every tap of a tile can be one box: strides of 1, and no windows that are pooled.

    A norm and a reduction over positions take tiles of outputs alone, one after the other.
    """
    return (
        not detail.is_pooled
        and detail.norm is None
        and detail.finish is None
        and all(axis.stride == 1 or axis.out == 1 for axis in detail.axes)
        and staged_channels(detail) % 8 == 0
        and detail.batches * prod(staged_sizes(detail)) <= _MAX_ROWS
    )


def box_tiles(detail: Convolution, knobs: StagedSettings) -> int:
    """Tiles of staged positions by output channels, of all images and groups."""
    height, width = staged_sizes(detail)[1:]
    outs = [axis.out for axis in detail.axes]
    span = ((outs[0] - 1) * height + outs[1] - 1) * width + outs[2]
    channels = padded_outputs(detail, knobs.block_co) // knobs.block_co
    return ceil_div(span, knobs.block_p) * channels * detail.batches


def fits_boxes(detail: Convolution, knobs: StagedSettings) -> bool:
    """Whether a step lies within one tap, as a box must."""
    is_whole = contraction(detail, knobs.depth) == detail.taps * staged_channels(detail)
    return is_whole and staged_channels(detail) % knobs.block_k == 0


def box_programs(detail: Convolution, knobs: StagedSettings) -> int:
    """Programs of a launch."""
    tiles = box_tiles(detail, knobs)
    return min(tiles, knobs.programs) if knobs.programs else tiles
