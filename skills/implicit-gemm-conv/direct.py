"""Triton text for convolutions that read the input where it lies.

A program multiplies output channels by positions, one tap and some channels a step.

Positions are the dense axis of loads and stores, so nothing is converted or copied; every tap reads
the same lines again, from L1 and L2. fp32 is rounded to TF32 on its way to the tensor cores, as
cuDNN does by PyTorch's default; the weights are packed and rounded once a call. The other way is
that of kmem/codegen/convolutions/staged_conv.py, which pays two passes over the input for a faster
product.
"""

from dataclasses import dataclass, replace

from kmem.codegen.chains.approximate import approximate
from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.ports import AFTER, hand_in
from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.launching import output_arguments, window_arguments
from kmem.codegen.convolutions.norming import leave_moments, norm_kernels, write_normed_launcher
from kmem.codegen.convolutions.staged_operands import PACK_FILTER, packing_block, padded_outputs
from kmem.codegen.products.matmul import STORE_TILE
from kmem.codegen.text.accumulate import ADD_CHAIN, steps_in_chain
from kmem.codegen.text.calls import write_launch
from kmem.codegen.text.parts import DOT_IN_PARTS, SCALES, STORE_HALVES, STORE_PARTS
from kmem.problem.sizes import ceil_div
from kmem.recipes import Emission

_LOAD = (
    "kmem_load_taps",
    '''
@triton.jit
def kmem_load_taps(
    x, step, at, d, h, wide, inside,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, PADDED: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """What a step's tap reads at every position of a tile, for some channels: (channels,
    positions), zero outside the image.
    """
    channel_steps: tl.constexpr = CP // BLOCK_K
    tap = step // channel_steps
    c = step % channel_steps * BLOCK_K + tl.arange(0, BLOCK_K)
    moved_d = tap // (KH * KW) * LD
    moved_h = tap // KW % KH * LH
    moved_w = tap % KW * LW
    if PADDED:
        inside &= (d + moved_d >= 0) & (d + moved_d < D) & (h + moved_h >= 0) & (h + moved_h < H)
        inside &= (wide + moved_w >= 0) & (wide + moved_w < W)
    place = c[:, None] * (D * H * W) + (at + ((moved_d * H + moved_h) * W + moved_w))[None, :]
    return tl.load(x + place, mask=(c < C)[:, None] & inside[None, :], other=0.0)
''',
)

_LOAD_PACKED = (
    "kmem_load_packed_taps",
    '''
@triton.jit
def kmem_load_packed_taps(
    x, step, at, d, h, wide, inside,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    C: tl.constexpr, PADDED: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """As kmem_load_taps where taps * channels are one axis, which steps cut anywhere."""
    k = step * BLOCK_K + tl.arange(0, BLOCK_K)
    c = k % C
    tap = k // C
    moved_d = tap // (KH * KW) * LD
    moved_h = tap // KW % KH * LH
    moved_w = tap % KW * LW
    mask = (k < KD * KH * KW * C)[:, None] & inside[None, :]
    if PADDED:
        # an axis of one tap and no border is never left
        if KD > 1 or BD != 0:
            depth = d[None, :] + moved_d[:, None]
            mask &= (depth >= 0) & (depth < D)
        if KH > 1 or BH != 0:
            height = h[None, :] + moved_h[:, None]
            mask &= (height >= 0) & (height < H)
        width = wide[None, :] + moved_w[:, None]
        mask &= (width >= 0) & (width < W)
    place = (c * (D * H * W) + (moved_d * H + moved_h) * W + moved_w)[:, None] + at[None, :]
    return tl.load(x + place, mask=mask, other=0.0)
''',
)

_READ = (
    "kmem_read_step",
    '''
@triton.jit
def kmem_read_step(
    x, step, at, d, h, wide, inside,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, PADDED: tl.constexpr, BLOCK_K: tl.constexpr,
    PACKED: tl.constexpr,
):
    """What a step reads, with taps apart or packed."""
    if PACKED:
        image = kmem_load_packed_taps(
            x, step, at, d, h, wide, inside, D, H, W, KD, KH, KW, LD, LH, LW, BD, BH, BW, C,
            PADDED, BLOCK_K,
        )
    else:
        image = kmem_load_taps(
            x, step, at, d, h, wide, inside, D, H, W, KH, KW, LD, LH, LW, C, CP, PADDED, BLOCK_K
        )
    return image
''',
)

_CONV = (
    "kmem_direct_conv",
    '''
@triton.jit
def kmem_direct_conv(
    x, w, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, COP: tl.constexpr, GAP: tl.constexpr,
    PADDED: tl.constexpr, TF32: tl.constexpr, SPLIT: tl.constexpr, WIDEN: tl.constexpr,
    PROMOTE: tl.constexpr, PACKED: tl.constexpr, PADDED_K: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of output channels by positions of one image and group. S, L, B: strides, dilations,
    borders (padding). GAP: elements of others between images. SPLIT: fp32 in two TF32 parts, three
    products. PROMOTE: steps in one short sum, 0 for one long sum. PACKED: a step holds channels of
    several taps, of PADDED_K in all.
    """
    channel_blocks: tl.constexpr = COP // BLOCK_CO
    position_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M % BLOCK_CO == 0) and (N % BLOCK_P == 0)
    steps: tl.constexpr = PADDED_K // BLOCK_K
    pid = tl.program_id(0)
    channels = pid % channel_blocks * BLOCK_CO + tl.arange(0, BLOCK_CO)
    tile = pid // channel_blocks % position_blocks
    positions = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    batch = pid // (channel_blocks * position_blocks)
    x += batch.to(tl.int64) * (C * D * H * W)
    if GAP > 0:
        x += (batch // BATCH_INNER).to(tl.int64) * GAP
    d = positions // (OH * OW) * SD - BD
    h = positions // OW % OH * SH - BH
    wide = positions % OW * SW - BW
    # A thread keeps one position and all channels of a step, which it stores as whole vectors in
    # the order that the tensor core wants; with several positions a thread it would store single
    # values: hence multiples of one. Runs of two, which no load relies on, lay the lanes of a warp
    # along positions: after runs of one Triton 3.6 lays them along channels, and a load touches 16
    # or 32 lines instead of two.
    at = tl.max_contiguous(tl.multiple_of((d * H + h) * W + wide, 1), 2)
    inside = positions < N
    at_w = (
        (batch % BATCH_INNER * COP + channels)[:, None] * (steps * BLOCK_K)
        + tl.arange(0, BLOCK_K)[None, :]
    )
    acc = tl.zeros((BLOCK_CO, BLOCK_P), tl.float32)
    part = tl.zeros((BLOCK_CO, BLOCK_P), tl.float32)
    image = kmem_read_step(
        x, 0, at, d, h, wide, inside, D, H, W, KD, KH, KW, LD, LH, LW, BD, BH, BW, C, CP, PADDED,
        BLOCK_K, PACKED,
    )
    weight = tl.load(w + at_w)
    for step in range(steps):
        # Loaded a step ahead, in registers: an asynchronous copy would put single values into
        # shared memory, many to a bank.
        ahead = tl.minimum(step + 1, steps - 1)
        next_image = kmem_read_step(
            x, ahead, at, d, h, wide, inside, D, H, W, KD, KH, KW, LD, LH, LW, BD, BH, BW, C, CP,
            PADDED, BLOCK_K, PACKED,
        )
        next_weight = tl.load(w + at_w + ahead * BLOCK_K)
        if WIDEN:
            part = tl.dot(weight.to(tl.float32), image.to(tl.float32), part, input_precision="ieee")
        elif SPLIT:
            part = kmem_dot_in_parts(weight, image)  # PROMOTE is 1
        elif TF32:
            part = tl.dot(weight, kmem_round_tf32(image), part, input_precision="tf32")
        else:
            part = tl.dot(weight, image, part)
        if PROMOTE > 0:
            # Inside a tensor core a long sum loses its low bits, so `part` stays short.
            if (step + 1) % PROMOTE == 0:
                acc = kmem_add_chain(acc, part)
                part = tl.zeros((BLOCK_CO, BLOCK_P), tl.float32)
        image = next_image
        weight = next_weight
    kmem_store_tile(
        out, acc + part, batch, 0, channels, positions,
        extra + (tile,), AFTER, STEPS, PLACE, M, N,
        BATCH, BATCH_INNER, 1, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, even,
    )
''',
)

#: Positions of a tile that one warp loads: one to a lane.
LANES = 32

# STORE_PARTS has kmem_round_tf32; SCALES and STORE_HALVES are what kmem_pack_filter calls.
_KERNELS = (
    SCALES,
    STORE_PARTS,
    STORE_HALVES,
    PACK_FILTER,
    STORE_TILE,
    ADD_CHAIN,
    DOT_IN_PARTS,
    _LOAD,
    _LOAD_PACKED,
    _READ,
    _CONV,
)


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """The knobs: positions and output channels of a program, channels of the input a step.

    `taps` packed: a step holds channels of several taps, apart: of one tap, padded to the step.
    On rung 1 of `accuracy` fp32 has three products of TF32 parts instead of one, and every step of
    them is added to a total; of half precision a long sum is promoted.
    """

    block_p: int
    block_co: int
    block_k: int
    taps: str = "apart"
    accuracy: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether a step holds channels of several taps."""
        return self.taps == "packed"


def is_split(detail: Convolution, knobs: DirectSettings) -> bool:
    """Whether fp32 is multiplied in two TF32 parts."""
    return detail.dtype == "float32" and knobs.accuracy > 0


def promote_steps(detail: Convolution, knobs: DirectSettings) -> int:
    """Steps in one short sum; 0 for one long sum."""
    if knobs.accuracy == 0:
        return 0
    return 1 if is_split(detail, knobs) else steps_in_chain(knobs.block_k)


def contraction(detail: Convolution, knobs: DirectSettings) -> int:
    """Taps times channels, padded to whole steps."""
    if knobs.is_packed:
        return ceil_div(detail.taps * detail.group_in, knobs.block_k) * knobs.block_k
    return detail.taps * ceil_div(detail.group_in, knobs.block_k) * knobs.block_k


def follow_direct(detail: Convolution, knobs: DirectSettings) -> Epilogue:
    """What follows: approximated below the last rung."""
    return detail.epilogue if knobs.accuracy > 1 else approximate(detail.epilogue)


def emit_direct(detail: Convolution, knobs: DirectSettings) -> Emission:
    """The kernels and the launcher at one setting."""
    detail = replace(detail, epilogue=follow_direct(detail, knobs))
    leaving = leave_moments(detail)
    padded_k, padded_out = contraction(detail, knobs), padded_outputs(detail, knobs.block_co)
    padded_c = detail.group_in if knobs.is_packed else padded_k // detail.taps
    rows = detail.groups * padded_out
    tiles = padded_out // knobs.block_co * ceil_div(detail.positions, knobs.block_p)
    borders = zip("DHW", (axis.padding for axis in detail.axes), strict=True)
    pack = write_launch(
        "kmem_pack_filter",
        rows,
        "w, packed, packed, packed",
        f"C={detail.group_in}, CP={padded_c}, M={detail.group_out}, COP={padded_out}",
        f"TAPS={detail.taps}, PADDED_K={padded_k}, SKEW=0, TERMS=1, SCALED=False, "
        f"ROUND={'False' if is_split(detail, knobs) else 'tf32'}",
        f"FLIPPED={detail.flipped}, INNER=1, BLOCK={packing_block(padded_k)}",
    )
    multiply = write_launch(
        "kmem_direct_conv",
        tiles * detail.batches,
        f"x, packed, {detail.target}",
        *output_arguments(leaving),
        window_arguments(detail, [axis.size for axis in detail.axes]),
        ", ".join(f"B{letter}={border}" for letter, border in borders),
        f"C={detail.group_in}, CP={padded_c}, COP={padded_out}, GAP={detail.gap}",
        f"PADDED={detail.is_padded}",
        f"TF32=tf32, SPLIT={is_split(detail, knobs)}, WIDEN=x.is_cpu, "
        f"PROMOTE={promote_steps(detail, knobs)}",
        f"PACKED={knobs.is_packed}, PADDED_K={padded_k}",
        f"BLOCK_P={knobs.block_p}, BLOCK_CO={knobs.block_co}, BLOCK_K={knobs.block_k}",
        f"num_warps={knobs.block_p // LANES}, num_stages=1",
        detail.options,
    )
    statements = [
        # On the CPU (interpreter) nothing is rounded, as eager's convolution is exact there.
        "tf32 = not x.is_cpu" if detail.dtype == "float32" else "tf32 = False",
        f"packed = torch.empty({rows * padded_k}, dtype=w.dtype, device=w.device)",
        pack,
        multiply,
    ]
    return Emission(
        (
            *hand_in(_KERNELS, {AFTER: leaving.epilogue}),
            *norm_kernels(detail),
            *detail.finishing,
        ),
        write_normed_launcher(detail, statements, knobs.block_p),
        own_size_only=detail.dtype == "float32" and not is_split(detail, knobs),
    )
