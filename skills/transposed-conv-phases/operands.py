"""Operands of a transposed convolution, as Triton text.

The input is staged, the weights are packed, and both are loaded and multiplied.
"""

from collections.abc import Iterable

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .transposed import PhaseSettings, Transposed, staged_channels

PACK_BLOCK = 256  # packed weights that one program writes
STAGED_CHANNELS = 64  # that one program of the staging kernel moves at a time, at most
#: Columns that it moves, in the order in which they are chosen where they fit a row alike.
STAGED_COLUMNS = (64, 32, 128)

STAGE_INPUT = (
    "kmem_stage_input",
    '''
@triton.jit
def kmem_stage_input(
    x, staged,
    C: tl.constexpr, CP: tl.constexpr,
    D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    D0: tl.constexpr, H0: tl.constexpr, W0: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(planes, C, D, H, W) to (planes, PD, PH, PW, CP): staged (0, 0, 0) is input (D0, H0, W0),
    zero outside the input and above C.
    """
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = (pid // (BLOCKS * PD * PH)).to(tl.int64)
    d = row // PH + D0
    h = row % PH + H0
    w = column + W0
    # a row outside the input ends before it begins
    end = tl.where((d >= 0) & (d < D) & (h >= 0) & (h < H), W, 0)
    inside = (w >= 0) & (w < end)
    source = x + plane * (C * D * H * W) + (d * H + h) * W
    target = staged + SKEW + plane * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        value = tl.load(
            source + c[:, None] * (D * H * W) + w[None, :],
            mask=(c < C)[:, None] & inside[None, :],
            other=0.0,
        )
        mask = (column < PW)[:, None] & (c < CP)[None, :]
        kmem_store_parts(
            target + column[:, None] * CP + c[None, :], tl.trans(value), mask, ROUND, LOW
        )
''',
)

PACK_WEIGHT = (
    "kmem_pack_transposed_weight",
    '''
@triton.jit
def kmem_pack_transposed_weight(
    w, packed,
    C: tl.constexpr, CP: tl.constexpr, COG: tl.constexpr, COP: tl.constexpr,
    TAPS: tl.constexpr, SIZE: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):
    """(groups * C, COG, TAPS) to (groups, COP, TAPS, CP), zero above C and COG: a row is one output
    channel's whole contraction.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = place % CP
    tap = place // CP % TAPS
    co = place // (CP * TAPS) % COP
    group = place // (CP * TAPS * COP)
    source = w + ((group * C + c) * COG + co) * TAPS + tap
    value = tl.load(source, mask=(place < SIZE) & (c < C) & (co < COG), other=0.0)
    kmem_store_parts(packed + SKEW + place, value, place < SIZE, ROUND, LOW)
''',
)

MULTIPLY = (
    "kmem_multiply",
    '''
@triton.jit
def kmem_load_entry(at, ok, WIDEN: tl.constexpr):
    value = tl.load(at, mask=ok, other=0.0 if ok is not None else None)
    return value.to(tl.float32) if WIDEN else value


@triton.jit
def kmem_multiply(tile, weight, low_tile, low_weight, acc, LOW: tl.constexpr, TF32: tl.constexpr):
    """acc + tile @ weight.T, of operands in two parts if LOW > 0."""
    precision: tl.constexpr = "tf32" if TF32 else "ieee"
    if LOW > 0:
        # small terms first; a sum of its own for each step, because long sums inside a tensor core
        # are cut, not rounded
        chunk = tl.dot(tile, tl.trans(low_weight), input_precision=precision)
        chunk = tl.dot(low_tile, tl.trans(weight), chunk, input_precision=precision)
        return acc + tl.dot(tile, tl.trans(weight), chunk, input_precision=precision)
    else:
        return tl.dot(tile, tl.trans(weight), acc, input_precision=precision)
''',
)


def write_staging(detail: Transposed, knobs: PhaseSettings) -> list[str]:
    """The statements that write `staged` and `packed`.

    `rounded` is whether fp32 is rounded to TF32: both parts of a split always are; whole values not
    on the CPU (interpreter), as eager's are not there.
    """
    parts = 2 if knobs.is_split(detail.dtype) else 1
    size_x, size_w = detail.staged_size, detail.packed_size(knobs.block_co)
    skew = knobs.skew(detail.dtype)
    return [
        f"staged = torch.empty({skew + parts * size_x}, dtype=x.dtype, device=x.device)",
        f"packed = torch.empty({skew + parts * size_w}, dtype=w.dtype, device=w.device)",
        f"y = torch.empty({detail.stored!r}, dtype=x.dtype, device=x.device)",
        f"rounded = {'True' if parts == 2 else 'tf32'}",
        _write_stage(detail, skew, size_x if parts == 2 else 0),
        _write_pack(detail, knobs, skew, size_w if parts == 2 else 0),
    ]


def _write_stage(detail: Transposed, skew: int, low: int) -> str:
    firsts, counts = zip(*detail.staged_axes, strict=True)
    padded_in = staged_channels(detail.group_in, detail.dtype)
    columns = min(STAGED_COLUMNS, key=lambda block: ceil_div(counts[2], block) * block)
    return write_launch(
        "kmem_stage_input",
        detail.planes * counts[0] * counts[1] * ceil_div(counts[2], columns),
        "x, staged",
        _join([detail.group_in, padded_in, *(axis.size for axis in detail.axes)]),
        _join([*counts, *firsts]),
        f"{skew}, rounded, {low}",
        f"{min(STAGED_CHANNELS, next_power_of_two(padded_in))}, {columns}, num_warps=4",
    )


def _write_pack(detail: Transposed, knobs: PhaseSettings, skew: int, low: int) -> str:
    size = detail.packed_size(knobs.block_co)
    padded_in = staged_channels(detail.group_in, detail.dtype)
    padded_out = detail.padded_outputs(knobs.block_co)
    return write_launch(
        "kmem_pack_transposed_weight",
        ceil_div(size, PACK_BLOCK),
        "w, packed",
        _join([detail.group_in, padded_in, detail.group_out, padded_out, detail.taps, size]),
        f"{skew}, rounded, {low}, {PACK_BLOCK}",
    )


def _join(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
