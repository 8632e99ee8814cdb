"""Triton text for convolutions whose input is staged channels-last in half precision first, so that
the product loads whole vectors.

Four launches: `kmem_largest_finite` finds each image's largest magnitude, `kmem_stage_image` writes
the image channels-last with its border of zeros, `kmem_pack_filter` writes each output channel's
weights as one row, `kmem_staged_conv` multiplies, (positions x taps * channels) by (taps * channels
x output channels). fp32 is written as fp16 scaled by a power of two (per image, per output
channel), which keeps as many significant bits as TF32 does (11) at twice its rate and half its
bytes; with TERMS=3 a second fp16 holds the next 11 bits and three products give what exact fp32
gives, as in split_matmul.py. Half precision is staged as it is.

Covered: values that are not finite give what they give in a sum of products. Not covered: an image
some of whose finite values are below 2**-29 (TERMS=3: 2**-40) of its largest keeps these with an
absolute error of that size.

Source: Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores", IJHPCA 36(4),
2022; PTX ISA, "Alternate Floating-Point Data Formats" (TF32: 10 explicit bits of significand, as
fp16).
"""

from collections.abc import Sequence

from kmem.codegen.convolution import Convolution, launch_head, output_arguments, window_arguments
from kmem.codegen.epilogue import specialise
from kmem.codegen.matmul import STORE_TILE, ceil_div
from kmem.codegen.split_matmul import SCALES
from kmem.codegen.transposed import STORE_PARTS as ROUND_TF32
from kmem.codegen.windows import Axis
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Settings

#: Elements of K that one tensor-core sum may hold before it moves to a second accumulator. Source:
#: as in split-fp16-matmul.
PROMOTE_ELEMENTS = 128
#: Programs that look for the largest magnitude of one image, at most: the staging kernel reads as
#: many results.
MAX_CHUNKS, CHUNK_ELEMENTS = 64, 8192

_LARGEST = (
    "kmem_largest_finite",
    '''
@triton.jit
def kmem_largest_finite(x, largest, SIZE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """Bits of the largest finite magnitude in one chunk of an image: largest[image, chunk]."""
    pid = tl.program_id(0)
    chunk = pid % CHUNKS
    x += (pid // CHUNKS).to(tl.int64) * SIZE
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, CHUNK, BLOCK):
        place = chunk * CHUNK + start + tl.arange(0, BLOCK)
        bits = kmem_magnitude_bits(tl.load(x + place, mask=place < SIZE, other=0.0))
        most = tl.maximum(most, tl.where(bits < 0x7F800000, bits, 0))
    tl.store(largest + pid, tl.max(most, axis=0))
''',
)

STORE_HALVES = (
    "kmem_store_halves",
    '''
@triton.jit
def kmem_store_halves(high, low, place, values, mask, TERMS: tl.constexpr):
    """Store scaled fp32 as fp16 and, for three terms, what that leaves times 2048.

    A value that is not finite goes into the second part alone: it then meets one product instead of two, which might cancel to NaN.
    """
    top = values.to(high.dtype.element_ty)
    if TERMS == 3:
        rest = (values - top.to(tl.float32)) * 2048.0
        finite = rest == rest
        tl.store(high + place, tl.where(finite, top, 0.0).to(high.dtype.element_ty), mask=mask)
        tl.store(low + place, tl.where(finite, rest, values).to(high.dtype.element_ty), mask=mask)
    else:
        tl.store(high + place, top, mask=mask)
''',
)

_STAGE = (
    "kmem_stage_image",
    '''
@triton.jit
def kmem_stage_image(
    x, largest, exponents, high, low, C: tl.constexpr, CP: tl.constexpr, GROUPS: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, CHUNKS: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
    SKEW: tl.constexpr, TERMS: tl.constexpr, SCALED: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(images * GROUPS, C, D, H, W) to (images * GROUPS, PD, PH, PW, CP): staged (BD, BH, BW) is input 0, zero outside and above C."""
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = pid // (BLOCKS * PD * PH)
    d = row // PH - BD
    h = row % PH - BH
    w = column - BW
    end = tl.where((d >= 0) & (d < D) & (h >= 0) & (h < H), W, 0)  # a row outside the input ends before it begins
    inside = (w >= 0) & (w < end)
    scale = 1.0
    if SCALED:
        chunk = tl.arange(0, CHUNKS_PADDED)
        found = tl.load(largest + plane // GROUPS * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
        exponent = kmem_exponent(tl.max(found, axis=0))
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + plane, exponent)  # every program of the plane writes the same
    source = x + plane.to(tl.int64) * (C * D * H * W) + (d * H + h) * W
    target = SKEW + plane.to(tl.int64) * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        values = tl.load(source + c[:, None] * (D * H * W) + w[None, :], mask=(c < C)[:, None] & inside[None, :], other=0.0)
        if SCALED:
            values = values * scale
        place = target + column[:, None] * CP + c[None, :]
        kmem_store_halves(high, low, place, tl.trans(values), (column < PW)[:, None] & (c < CP)[None, :], TERMS)
''',
)

PACK_FILTER = (
    "kmem_pack_filter",
    '''
@triton.jit
def kmem_pack_filter(
    w, exponents, high, low, C: tl.constexpr, CP: tl.constexpr, M: tl.constexpr, COP: tl.constexpr, TAPS: tl.constexpr,
    PADDED_K: tl.constexpr, SKEW: tl.constexpr, TERMS: tl.constexpr, SCALED: tl.constexpr, ROUND: tl.constexpr, FLIPPED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(groups * M, C, TAPS) to (groups * COP, PADDED_K) with k = tap * CP + c, zero above M, C and TAPS; scaled by output channel.

    FLIPPED weights are (groups * C, M, TAPS) with the taps backwards.
    """
    row = tl.program_id(0)
    w += row // COP * (M * C * TAPS) + row % COP * (TAPS if FLIPPED else C * TAPS)
    channel_step: tl.constexpr = M * TAPS if FLIPPED else TAPS
    end = tl.where(row % COP < M, C, 0)  # a row above M has no channels
    scale = 1.0
    if SCALED:
        most = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, C * TAPS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            at = place // TAPS * channel_step + place % TAPS
            bits = kmem_magnitude_bits(tl.load(w + at, mask=place < end * TAPS, other=0.0))
            most = tl.maximum(most, tl.where(bits < 0x7F800000, bits, 0))
        exponent = kmem_exponent(tl.max(most, axis=0))
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + row, exponent)
    for start in range(0, PADDED_K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        tap = TAPS - 1 - k // CP if FLIPPED else k // CP
        values = tl.load(w + k % CP * channel_step + tap, mask=(k % CP < end) & (k < TAPS * CP), other=0.0)
        if SCALED:
            values = values * scale
        if ROUND:
            values = kmem_round_tf32(values)
        kmem_store_halves(high, low, SKEW + row * PADDED_K + k, values, k < PADDED_K, TERMS)
''',
)

_CONV = (
    "kmem_staged_conv",
    '''
@triton.jit
def kmem_staged_conv(
    x, x_low, x_exponents, w, w_low, w_exponents, out, EPILOGUE_PARAMETERS M: tl.constexpr, N: tl.constexpr,
    BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr, CP: tl.constexpr, COP: tl.constexpr, PADDED_K: tl.constexpr,
    VECTOR: tl.constexpr, SKEW: tl.constexpr, TERMS: tl.constexpr, PROMOTE: tl.constexpr, SCALED: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_CO: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of positions by output channels of one image and group; x is staged (.., D, H, W, CP), S, L: strides and dilations."""
    channel_blocks: tl.constexpr = COP // BLOCK_CO
    position_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M % BLOCK_CO == 0) and (N % BLOCK_P == 0)
    pid = tl.program_id(0)
    channels = pid % channel_blocks * BLOCK_CO + tl.arange(0, BLOCK_CO)
    positions = pid // channel_blocks % position_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    batch = pid // (channel_blocks * position_blocks)
    p = tl.minimum(positions, N - 1)  # positions past the last compute it again, which is never stored
    at_x = ((p // (OH * OW) * SD * H + p // OW % OH * SH) * W + p % OW * SW)[:, None] * CP
    at_w = channels[:, None] * PADDED_K
    plane = batch.to(tl.int64) * (D * H * W * CP)
    x += SKEW + plane
    x_low += SKEW + plane
    rows = batch % BATCH_INNER * COP
    w += SKEW + rows * PADDED_K
    w_low += SKEW + rows * PADDED_K
    acc = tl.zeros((BLOCK_P, BLOCK_CO), tl.float32)
    part = tl.zeros((BLOCK_P, BLOCK_CO), tl.float32)
    cross = tl.zeros((BLOCK_P, BLOCK_CO), tl.float32)
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
        image = tl.load(x + at_x + from_x, mask=inside, other=nothing)
        weight = tl.load(w + at_w + k[None, :])
        if WIDEN:
            image, weight = image.to(tl.float32), weight.to(tl.float32)
        part = tl.dot(image, tl.trans(weight), part)
        if TERMS == 3:
            cross = tl.dot(image, tl.trans(tl.load(w_low + at_w + k[None, :])), cross)
            cross = tl.dot(tl.load(x_low + at_x + from_x, mask=inside, other=nothing), tl.trans(weight), cross)
        if PROMOTE > 0:
            # Inside a tensor core a long sum loses its low bits, so `part` stays short. One flat loop: nested, it loses the pipeline.
            if (step + 1) % PROMOTE == 0:
                acc += part
                part = tl.zeros((BLOCK_P, BLOCK_CO), tl.float32)
    if TERMS == 3:
        part = acc + part + cross * 0.00048828125
    sums = tl.trans(part)
    if SCALED:
        exponent = tl.load(x_exponents + batch) + tl.zeros((BLOCK_P,), tl.int32)
        sums = kmem_unscale(sums, tl.load(w_exponents + rows + channels), exponent)
    kmem_store_tile(
        out, sums, batch, 0, channels, positions, EPILOGUE_ARGUMENTS M, N,
        BATCH, BATCH_INNER, 1, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, "none", 0, even,
    )
''',
)

_KERNELS = (SCALES, ROUND_TF32, STORE_HALVES, _LARGEST, _STAGE, PACK_FILTER, STORE_TILE, _CONV)


def staged_channels(detail: Convolution) -> int:
    """Channels of one group, padded to whole vectors of 8 (16 bytes), or of 4 where there are no
    more.
    """
    return 4 if detail.group_in <= 4 else ceil_div(detail.group_in, 8) * 8


def staged_axis(axis: Axis) -> int:
    """Positions of an axis that are staged: from the first that a tap reads, padding included, to
    the last.
    """
    return (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def staged_sizes(detail: Convolution) -> list[int]:
    return [staged_axis(axis) for axis in detail.axes]


def contraction(detail: Convolution, block_k: int) -> int:
    """Taps times padded channels, padded to whole steps."""
    return ceil_div(detail.taps * staged_channels(detail), block_k) * block_k


def promote_steps(detail: Convolution, settings: Settings) -> int:
    """Steps of K in one short sum; 0 where the whole sum is short, or as exact as its contract
    asks.
    """
    long = detail.taps * staged_channels(detail) > PROMOTE_ELEMENTS
    return (
        max(1, PROMOTE_ELEMENTS // int(settings["block_k"]))
        if int(settings["terms"]) == 3 and long
        else 0
    )


def emit_staged(detail: Convolution, settings: Settings) -> Emission:
    """The kernels and the launcher at one setting (terms, block_p, block_co, block_k, copy_bytes,
    warps, stages).
    """
    terms, block_p, block_co, block_k = (
        int(settings[name]) for name in ("terms", "block_p", "block_co", "block_k")
    )
    scaled = detail.dtype == "float32"
    padded_c, sizes = staged_channels(detail), staged_sizes(detail)
    padded_k = contraction(detail, block_k)
    padded_out = ceil_div(detail.group_out, block_co) * block_co
    skew = 4 if int(settings["copy_bytes"]) == 8 else 0
    lines = _stage_lines(detail, padded_c, sizes, terms, skew, scaled)
    rows = detail.groups * padded_out
    half = _half(scaled, terms)
    lines += [
        f"w_high = torch.empty({skew + rows * padded_k}, dtype={half}, device=x.device)",
        "w_low = torch.empty_like(w_high)" if terms == 3 else "w_low = w_high  # not read",
        f"w_exponents = torch.empty({rows}, dtype=torch.int32, device=x.device)",
        f"kmem_pack_filter[({rows},)](w, w_exponents, w_high, w_low, C={detail.group_in}, "
        f"CP={padded_c}, "
        f"M={detail.group_out}, COP={padded_out}, TAPS={detail.taps}, PADDED_K={padded_k}, "
        f"SKEW={skew}, TERMS={terms}, SCALED={scaled}, "
        f"ROUND=False, FLIPPED={detail.flipped}, BLOCK={min(1024, next_power_of_two(padded_k))})",
        f"kmem_staged_conv{detail.epilogue.suffix}[({padded_out // block_co * ceil_div(detail.positions, block_p) * detail.batches},)]("
        f"high, low, exponents, w_high, w_low, w_exponents, out, {output_arguments(detail)}, "
        f"{window_arguments(detail, sizes)}, "
        f"CP={padded_c}, COP={padded_out}, PADDED_K={padded_k}, VECTOR={min(8, padded_c)}, "
        f"SKEW={skew}, TERMS={terms}, "
        f"PROMOTE={promote_steps(detail, settings)}, SCALED={scaled}, "
        f"WIDEN={'False' if terms == 3 else 'x.is_cpu'}, "
        f"BLOCK_P={block_p}, BLOCK_CO={block_co}, BLOCK_K={block_k}, "
        f"num_warps={settings['warps']}, num_stages={settings['stages']})",
        "return out",
    ]
    launcher = launch_head(detail) + "".join(f"    {line}\n" for line in lines)
    return Emission(
        specialise(_KERNELS, detail.epilogue), launcher, own_size_only=scaled and terms == 1
    )


def _half(scaled: bool, terms: int) -> str:
    """Type of the staged values.

    On the CPU (interpreter) one term is not rounded, as eager's TF32 is not there.
    """
    if not scaled:
        return "x.dtype"
    return "torch.float16" if terms == 3 else "(torch.float32 if x.is_cpu else torch.float16)"


def _stage_lines(
    detail: Convolution, padded_c: int, sizes: Sequence[int], terms: int, skew: int, scaled: bool
) -> list[str]:
    """The launches that find the scales and write the staged input."""
    depth, height, width = sizes
    image = detail.channels_in * detail.inputs
    chunks = max(1, min(MAX_CHUNKS, image // CHUNK_ELEMENTS))
    block = min(1024, next_power_of_two(image))
    chunk = ceil_div(ceil_div(image, chunks), block) * block
    chunks = ceil_div(image, chunk)
    block_c = min(64, next_power_of_two(padded_c))
    block_w = max(16, min(next_power_of_two(width), 4096 // block_c, 256))
    grid = detail.batches * depth * height * ceil_div(width, block_w)
    half = _half(scaled, terms)
    borders = "".join(
        f"B{letter}={axis.padding}, " for letter, axis in zip("DHW", detail.axes, strict=True)
    )
    inputs = "".join(
        f"{letter}={axis.size}, " for letter, axis in zip("DHW", detail.axes, strict=True)
    )
    lines = [
        (
            f"high = torch.empty({skew + detail.batches * depth * height * width * padded_c}, "
            f"dtype={half}, device=x.device)"
        ),
        "low = torch.empty_like(high)" if terms == 3 else "low = high  # not read",
        f"exponents = torch.empty({detail.batches}, dtype=torch.int32, device=x.device)",
    ]
    if scaled:
        lines += [
            f"largest = torch.empty({detail.images * chunks}, dtype=torch.int32, device=x.device)",
            (
                f"kmem_largest_finite[({detail.images * chunks},)](x, largest, SIZE={image}, "
                f"CHUNK={chunk}, CHUNKS={chunks}, BLOCK={block})"
            ),
        ]
    else:
        lines.append("largest = exponents  # not read")
    lines.append(
        f"kmem_stage_image[({grid},)](x, largest, exponents, high, low, C={detail.group_in}, "
        f"CP={padded_c}, "
        f"GROUPS={detail.groups}, {inputs}{borders}PD={depth}, PH={height}, PW={width}, "
        f"CHUNKS={chunks}, "
        f"CHUNKS_PADDED={next_power_of_two(chunks)}, SKEW={skew}, TERMS={terms}, SCALED={scaled}, "
        f"BLOCK_C={block_c}, BLOCK_W={block_w}, "
        # Few channels make small blocks: several values a thread, and no barriers of four warps
        # around two of them.
        f"num_warps={max(1, min(4, block_c * block_w // 512))})"
    )
    return lines
