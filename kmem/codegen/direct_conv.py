"""Triton text for convolutions that read the input where it lies: output channels by positions, one
tap and some channels a step.

Positions are the dense axis of loads and stores, so nothing is converted or copied; every tap reads
the same lines again, from L1 and L2. fp32 is rounded to TF32 on its way to the tensor cores, as
cuDNN does by PyTorch's default; the weights are packed and rounded once a call. Sibling:
staged_conv.py, which pays two passes over the input for a faster product.
"""

from kmem.codegen.convolution import Convolution, launch_head, output_arguments, window_arguments
from kmem.codegen.epilogue import specialise
from kmem.codegen.matmul import STORE_TILE, ceil_div
from kmem.codegen.split_matmul import SCALES
from kmem.codegen.staged_conv import PACK_FILTER, STORE_HALVES
from kmem.codegen.transposed import STORE_PARTS as ROUND_TF32
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Settings

_LOAD = (
    "kmem_load_taps",
    '''
@triton.jit
def kmem_load_taps(
    x, step, at, d, h, wide, inside, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, PADDED: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """What a step's tap reads at every position of a tile, for some channels: (channels, positions), zero outside the image."""
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

_CONV = (
    "kmem_direct_conv",
    '''
@triton.jit
def kmem_direct_conv(
    x, w, out, EPILOGUE_PARAMETERS M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    C: tl.constexpr, CP: tl.constexpr, COP: tl.constexpr, PADDED: tl.constexpr, TF32: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of output channels by positions of one image and group. S, L, B: strides, dilations, borders (padding)."""
    channel_blocks: tl.constexpr = COP // BLOCK_CO
    position_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M % BLOCK_CO == 0) and (N % BLOCK_P == 0)
    steps: tl.constexpr = KD * KH * KW * CP // BLOCK_K
    pid = tl.program_id(0)
    channels = pid % channel_blocks * BLOCK_CO + tl.arange(0, BLOCK_CO)
    positions = pid // channel_blocks % position_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    batch = pid // (channel_blocks * position_blocks)
    x += batch.to(tl.int64) * (C * D * H * W)
    d = positions // (OH * OW) * SD - BD
    h = positions // OW % OH * SH - BH
    wide = positions % OW * SW - BW
    # A thread keeps one position and all channels of a step, which it stores as whole vectors in the order that the tensor core wants; with
    # several positions a thread it would store single values: hence multiples of one. Runs of two, which no load relies on, lay the lanes
    # of a warp along positions: after runs of one Triton 3.6 lays them along channels, and a load touches 16 or 32 lines instead of two.
    at = tl.max_contiguous(tl.multiple_of((d * H + h) * W + wide, 1), 2)
    inside = positions < N
    at_w = (batch % BATCH_INNER * COP + channels)[:, None] * (steps * BLOCK_K) + tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros((BLOCK_CO, BLOCK_P), tl.float32)
    image = kmem_load_taps(x, 0, at, d, h, wide, inside, D, H, W, KH, KW, LD, LH, LW, C, CP, PADDED, BLOCK_K)
    weight = tl.load(w + at_w)
    for step in range(steps):
        # Loaded a step ahead, in registers: an asynchronous copy would put single values into shared memory, many to a bank.
        ahead = tl.minimum(step + 1, steps - 1)
        next_image = kmem_load_taps(x, ahead, at, d, h, wide, inside, D, H, W, KH, KW, LD, LH, LW, C, CP, PADDED, BLOCK_K)
        next_weight = tl.load(w + at_w + ahead * BLOCK_K)
        if WIDEN:
            acc = tl.dot(weight.to(tl.float32), image.to(tl.float32), acc, input_precision="ieee")
        elif TF32:
            acc = tl.dot(weight, kmem_round_tf32(image), acc, input_precision="tf32")
        else:
            acc = tl.dot(weight, image, acc)
        image = next_image
        weight = next_weight
    kmem_store_tile(
        out, acc, batch, 0, channels, positions, EPILOGUE_ARGUMENTS M, N,
        BATCH, BATCH_INNER, 1, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, "none", 0, even,
    )
''',
)

#: Positions of a tile that one warp loads: one to a lane.
LANES = 32

_KERNELS = (SCALES, ROUND_TF32, STORE_HALVES, PACK_FILTER, STORE_TILE, _LOAD, _CONV)


def emit_direct(detail: Convolution, settings: Settings) -> Emission:
    """The kernels and the launcher at one setting (block_p, block_co, block_k)."""
    block_p, block_co, block_k = (
        int(settings[name]) for name in ("block_p", "block_co", "block_k")
    )
    padded_c = ceil_div(detail.group_in, block_k) * block_k
    padded_k, padded_out = detail.taps * padded_c, ceil_div(detail.group_out, block_co) * block_co
    rows = detail.groups * padded_out
    borders = ", ".join(
        f"B{letter}={axis.padding}" for letter, axis in zip("DHW", detail.axes, strict=True)
    )
    lines = [
        # On the CPU (interpreter) nothing is rounded, as eager's convolution is exact there.
        "tf32 = x.dtype is torch.float32 and not x.is_cpu",
        f"packed = torch.empty({rows * padded_k}, dtype=x.dtype, device=x.device)",
        f"kmem_pack_filter[({rows},)](w, packed, packed, packed, C={detail.group_in}, "
        f"CP={padded_c}, M={detail.group_out}, "
        f"COP={padded_out}, TAPS={detail.taps}, PADDED_K={padded_k}, SKEW=0, TERMS=1, "
        f"SCALED=False, ROUND=tf32, "
        f"FLIPPED={detail.flipped}, BLOCK={min(1024, next_power_of_two(padded_k))})",
        f"kmem_direct_conv{detail.epilogue.suffix}[({padded_out // block_co * ceil_div(detail.positions, block_p) * detail.batches},)]("
        f"x, packed, out, {output_arguments(detail)}, "
        f"{window_arguments(detail, [axis.size for axis in detail.axes])}, {borders}, "
        f"C={detail.group_in}, CP={padded_c}, COP={padded_out}, PADDED={detail.is_padded}, "
        f"TF32=tf32, WIDEN=x.is_cpu, "
        f"BLOCK_P={block_p}, BLOCK_CO={block_co}, BLOCK_K={block_k}, "
        f"num_warps={block_p // LANES}, num_stages=1)",
        "return out",
    ]
    launcher = launch_head(detail) + "".join(f"    {line}\n" for line in lines)
    return Emission(
        specialise(_KERNELS, detail.epilogue), launcher, own_size_only=detail.dtype == "float32"
    )
