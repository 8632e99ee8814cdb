"""Operands of a staged convolution as Triton text: scales, input and filter.

`kmem_largest_finite` finds each image's largest magnitude, `kmem_stage_image` writes the image
channels-last with its border of zeros, and `kmem_pack_filter` writes each output channel's weights
as one row. fp32 becomes fp16 scaled by a power of two (per image, per output channel), in one part
or in two; half precision is copied as it is. staged_conv.py multiplies what is written here.
"""

import math
from dataclasses import dataclass, replace

from kmem.codegen.convolutions.convolution import Convolution
from kmem.codegen.convolutions.gathered_taps import (
    gather_arguments,
    gather_taps,
    gathered_count,
)
from kmem.codegen.convolutions.windows import WindowAxis
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Settings

#: Programs that look for the largest magnitude of one image, at most: the staging kernel reads as
#: many results.
MAX_CHUNKS, CHUNK_ELEMENTS = 64, 8192
#: Elements that one program of the staging kernel moves at a time.
_STAGED_BLOCK = 4096
#: Elements of a thread, at least. Few channels make small blocks: then there are several values a
#: thread, and no barriers of four warps around two of them.
_THREAD_ELEMENTS = 16
_LARGEST_BLOCK = 1024

LARGEST = (
    "kmem_largest_finite",
    '''
@triton.jit
def kmem_largest_finite(
    x, largest,
    SIZE: tl.constexpr, GAP: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Bits of the largest finite magnitude in one chunk of an image: largest[image, chunk]."""
    pid = tl.program_id(0)
    chunk = pid % CHUNKS
    x += (pid // CHUNKS).to(tl.int64) * (SIZE + GAP)
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, CHUNK, BLOCK):
        place = chunk * CHUNK + start + tl.arange(0, BLOCK)
        bits = kmem_magnitude_bits(tl.load(x + place, mask=place < SIZE, other=0.0))
        most = tl.maximum(most, tl.where(bits < 0x7F800000, bits, 0))
    tl.store(largest + pid, tl.max(most, axis=0))
''',
)

STAGE = (
    "kmem_stage_image",
    '''
@triton.jit
def kmem_stage_image(
    x, largest, exponents, high, low,
    C: tl.constexpr, CP: tl.constexpr, GROUPS: tl.constexpr, GAP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    BD: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    CHUNKS: tl.constexpr, CHUNKS_PADDED: tl.constexpr,
    SKEW: tl.constexpr, TERMS: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(images * GROUPS, C, D, H, W) to (images * GROUPS, PD, PH, PW, CP): staged (BD, BH, BW) is
    input 0, zero outside and above C. GAP elements of others lie between images.
    """
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = pid // (BLOCKS * PD * PH)
    d = row // PH - BD
    h = row % PH - BH
    w = column - BW
    # a row outside the input ends before it begins
    end = tl.where((d >= 0) & (d < D) & (h >= 0) & (h < H), W, 0)
    inside = (w >= 0) & (w < end)
    scale = 1.0
    if SCALED:
        chunk = tl.arange(0, CHUNKS_PADDED)
        found = tl.load(largest + plane // GROUPS * CHUNKS + chunk, mask=chunk < CHUNKS, other=0)
        exponent = kmem_exponent(tl.max(found, axis=0))
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + plane, exponent)  # every program of the plane writes the same
    source = x + plane.to(tl.int64) * (C * D * H * W) + (d * H + h) * W
    if GAP > 0:
        source += (plane // GROUPS).to(tl.int64) * GAP
    target = SKEW + plane.to(tl.int64) * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        values = tl.load(
            source + c[:, None] * (D * H * W) + w[None, :],
            mask=(c < C)[:, None] & inside[None, :],
            other=0.0,
        )
        if SCALED:
            values = values * scale
        place = target + column[:, None] * CP + c[None, :]
        kmem_store_halves(
            high, low, place, tl.trans(values), (column < PW)[:, None] & (c < CP)[None, :], TERMS
        )
''',
)

PACK_FILTER = (
    "kmem_pack_filter",
    '''
@triton.jit
def kmem_pack_filter(
    w, exponents, high, low,
    C: tl.constexpr, CP: tl.constexpr, M: tl.constexpr, COP: tl.constexpr,
    TAPS: tl.constexpr, PADDED_K: tl.constexpr, SKEW: tl.constexpr, TERMS: tl.constexpr,
    SCALED: tl.constexpr, ROUND: tl.constexpr, FLIPPED: tl.constexpr, INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(groups * M, C, TAPS) to (groups * COP, PADDED_K) with k = tap * CP + c, zero above M, C and
    TAPS; scaled by output channel.

    FLIPPED weights are (groups * C, M, TAPS) with the taps backwards. INNER: taps of a channel that
    count as channels (gathered_taps.py): weights are (groups * M, C / INNER, TAPS, INNER).
    """
    row = tl.program_id(0)
    every: tl.constexpr = TAPS * INNER
    w += row // COP * (M * C * TAPS) + row % COP * (every if FLIPPED else C * TAPS)
    channel_step: tl.constexpr = M * every if FLIPPED else every
    end = tl.where(row % COP < M, C, 0)  # a row above M has no channels
    scale = 1.0
    if SCALED:
        most = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, C * TAPS, BLOCK):
            place = start + tl.arange(0, BLOCK)
            at = place // every * channel_step + place % every
            bits = kmem_magnitude_bits(tl.load(w + at, mask=place < end * TAPS, other=0.0))
            most = tl.maximum(most, tl.where(bits < 0x7F800000, bits, 0))
        exponent = kmem_exponent(tl.max(most, axis=0))
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + row, exponent)
    for start in range(0, PADDED_K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        tap = k // CP * INNER + k % CP % INNER
        if FLIPPED:
            tap = every - 1 - tap
        place = k % CP // INNER * channel_step + tap
        values = tl.load(w + place, mask=(k % CP < end) & (k < TAPS * CP), other=0.0)
        if SCALED:
            values = values * scale
        if ROUND:
            values = kmem_round_tf32(values)
        kmem_store_halves(high, low, SKEW + row * PADDED_K + k, values, k < PADDED_K, TERMS)
''',
)


WIDE = 16  # bytes that a copy moves at most
LEAST_DEPTH = 16  # of a product. Source: PTX ISA, wgmma.mma_async shapes (k16)


@dataclass(frozen=True, slots=True)
class StagedSettings:
    """The knobs of a staged convolution.

    A program makes `block_p` positions by `block_co` output channels, `block_k` of the contraction
    a step, where it has steps. `terms`: 3 for two fp16 parts and three products, 1 for one.
    `copy_bytes`: of a copy to shared memory; of 16 go through L2 only, or with `kept_in` l1 through
    L1 too, as those of 8 do, where the taps of a tile meet again, and the filter that programs of
    an SM share. Source: PTX ISA, cp.async (.cg caches in L2 and takes 16 bytes; .ca caches at all
    levels). `sums_along`: the axis along which a thread's sums lie; positions are how they are
    stored. `gather`: taps that are staged beside their channels, see gathered_taps.py. `copies`:
    who copies operands to shared memory, threads or boxes; `programs`: so many walk over the tiles,
    0 for one a tile, see walking_conv.py and boxed_conv.py. `accuracy`: rungs above the one where
    fp32 has three terms and where half precision has one long sum; a setting's knob counts from one
    term, see `read_staged`.
    """

    terms: int
    block_p: int
    block_co: int
    block_k: int
    copy_bytes: int
    warps: int
    stages: int
    sums_along: str = "channels"
    gather: str = "no"
    copies: str = "threads"
    programs: int = 0
    kept_in: str = "l2"
    accuracy: int = 0

    @property
    def parts(self) -> int:
        """Values in half precision that stand for one of the input."""
        return 2 if self.terms == 3 else 1

    @property
    def copies_widely(self) -> bool:
        """Whether a copy moves 16 bytes."""
        return self.copy_bytes == WIDE

    @property
    def has_boxes(self) -> bool:
        """Whether the hardware copies tiles."""
        return self.copies == "boxes"

    @property
    def walks(self) -> bool:
        """Whether programs whose threads copy walk over the tiles."""
        return self.programs > 0 and not self.has_boxes

    @property
    def depth(self) -> int:
        """What the contraction is padded to a multiple of: a step's, or what a product takes."""
        return LEAST_DEPTH if self.walks else self.block_k

    @property
    def skew(self) -> int:
        """Elements before the first, so that vectors are aligned to 8 bytes and not to 16."""
        return 0 if self.copies_widely else 4


def read_staged(detail: Convolution, settings: Settings) -> StagedSettings:
    """A site's setting as a record: one term of fp32 becomes three on the rungs above the first.

    Where eager is expected to be exact it does on the first too.
    """
    knobs = read_settings(StagedSettings, settings)
    if knobs.terms == 3 or not is_scaled(detail):
        return knobs
    if detail.is_eager_exact:
        return replace(knobs, terms=3)
    return replace(knobs, terms=3, accuracy=knobs.accuracy - 1) if knobs.accuracy else knobs


def staged_channels(detail: Convolution) -> int:
    """Channels of one group, padded to whole vectors.

    A vector has 8 channels (16 bytes), or 4 where there are no more.
    """
    return 4 if detail.group_in <= 4 else ceil_div(detail.group_in, 8) * 8


def staged_axis(axis: WindowAxis) -> int:
    """Positions of an axis that are staged.

    They reach from the first that a tap reads, padding included, to the last.
    """
    return (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def staged_sizes(detail: Convolution) -> list[int]:
    """Staged positions along depth, height and width."""
    return [staged_axis(axis) for axis in detail.axes]


def contraction(detail: Convolution, depth: int) -> int:
    """Taps times padded channels, padded to a multiple of a depth."""
    return ceil_div(detail.taps * staged_channels(detail), depth) * depth


def padded_outputs(detail: Convolution, block_co: int) -> int:
    """Output channels of one group, padded to whole tiles."""
    return ceil_div(detail.group_out, block_co) * block_co


def is_scaled(detail: Convolution) -> bool:
    """Whether values are scaled before they are written in half precision."""
    return detail.dtype == "float32"


def write_staging(detail: Convolution, knobs: StagedSettings) -> list[str]:
    """The statements that write the staged input.

    They find the scales and write `high`, `low` and `exponents`.
    """
    staged = gather_taps(detail, knobs.gather)
    sizes = staged_sizes(staged)
    depth, height = sizes[:2]
    width = sizes[2]
    padded_c = staged_channels(staged)
    size = knobs.skew + detail.batches * math.prod(sizes) * padded_c
    half = _half(detail, knobs.terms, "x")
    scales, chunks = _write_scales(detail)
    block_c = min(64, next_power_of_two(padded_c))
    block_w = max(16, min(next_power_of_two(width), _STAGED_BLOCK // block_c, 256))
    letters = list(zip("DHW", detail.axes, strict=True))
    gathered = [] if knobs.gather == "no" else [gather_arguments(detail, knobs.gather)]
    return [
        write_call("high = torch.empty", f"{size}", f"dtype={half}", "device=x.device"),
        "low = torch.empty_like(high)" if knobs.terms == 3 else "low = high  # not read",
        f"exponents = torch.empty({detail.batches}, dtype=torch.int32, device=x.device)",
        *scales,
        write_launch(
            "kmem_stage_taps" if gathered else "kmem_stage_image",
            detail.batches * depth * height * ceil_div(width, block_w),
            "x, largest, exponents, high, low",
            f"C={detail.group_in}, CP={padded_c}, GROUPS={detail.groups}, GAP={detail.gap}",
            ", ".join(f"{letter}={axis.size}" for letter, axis in letters),
            ", ".join(f"B{letter}={axis.padding}" for letter, axis in letters),
            f"PD={depth}, PH={height}, PW={width}",
            *gathered,
            f"CHUNKS={chunks}, CHUNKS_PADDED={next_power_of_two(chunks)}",
            f"SKEW={knobs.skew}, TERMS={knobs.terms}, SCALED={is_scaled(detail)}",
            f"BLOCK_C={block_c}, BLOCK_W={block_w}",
            f"num_warps={max(1, min(4, block_c * block_w // (32 * _THREAD_ELEMENTS)))}",
        ),
    ]


def _write_scales(detail: Convolution) -> tuple[list[str], int]:
    """The statements that make `largest`, and how many chunks of an image it holds."""
    image = detail.channels_in * detail.inputs
    chunks = max(1, min(MAX_CHUNKS, image // CHUNK_ELEMENTS))
    block = min(_LARGEST_BLOCK, next_power_of_two(image))
    chunk = ceil_div(ceil_div(image, chunks), block) * block
    chunks = ceil_div(image, chunk)
    if not is_scaled(detail):
        return ["largest = exponents  # not read"], chunks
    programs = detail.images * chunks
    sizes = f"SIZE={image}, GAP={detail.gap}, CHUNK={chunk}, CHUNKS={chunks}, BLOCK={block}"
    return [
        f"largest = torch.empty({programs}, dtype=torch.int32, device=x.device)",
        write_launch("kmem_largest_finite", programs, "x, largest", sizes),
    ], chunks


def write_packing(detail: Convolution, knobs: StagedSettings) -> list[str]:
    """The statements that write the packed filter: `w_high`, `w_low` and `w_exponents`."""
    inner = gathered_count(detail, knobs.gather)
    detail = gather_taps(detail, knobs.gather)
    padded_k = contraction(detail, knobs.depth)
    padded_out = padded_outputs(detail, knobs.block_co)
    rows = detail.groups * padded_out
    size, half = knobs.skew + rows * padded_k, _half(detail, knobs.terms, "w")
    return [
        write_call("w_high = torch.empty", f"{size}", f"dtype={half}", "device=w.device"),
        "w_low = torch.empty_like(w_high)" if knobs.terms == 3 else "w_low = w_high  # not read",
        f"w_exponents = torch.empty({rows}, dtype=torch.int32, device=w.device)",
        write_launch(
            "kmem_pack_filter",
            rows,
            "w, w_exponents, w_high, w_low",
            f"C={detail.group_in}, CP={staged_channels(detail)}",
            f"M={detail.group_out}, COP={padded_out}, TAPS={detail.taps}, PADDED_K={padded_k}",
            f"SKEW={knobs.skew}, TERMS={knobs.terms}, SCALED={is_scaled(detail)}",
            f"ROUND=False, FLIPPED={detail.flipped}, INNER={inner}",
            f"BLOCK={packing_block(padded_k)}",
        ),
    ]


def packing_block(padded_k: int) -> int:
    """Elements of a row that `kmem_pack_filter` writes at a time."""
    return min(1024, next_power_of_two(padded_k))


def _half(detail: Convolution, terms: int, source: str) -> str:
    """Type of the staged values of an operand.

    On the CPU (interpreter) one term is not rounded, as eager's TF32 is not there.
    """
    if not is_scaled(detail):
        return f"{source}.dtype"
    on_cpu = f"(torch.float32 if {source}.is_cpu else torch.float16)"
    return "torch.float16" if terms == 3 else on_cpu
