"""Operands of a transposed convolution, as Triton text: staging the input, packing the weights,
loading and multiplying both.
"""

STAGE_INPUT = (
    "kmem_stage_input",
    '''
@triton.jit
def kmem_stage_input(
    x, staged, C: tl.constexpr, CP: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, D0: tl.constexpr, H0: tl.constexpr, W0: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(planes, C, D, H, W) to (planes, PD, PH, PW, CP): staged (0, 0, 0) is input (D0, H0, W0), zero outside the input and above C."""
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = (pid // (BLOCKS * PD * PH)).to(tl.int64)
    d = row // PH + D0
    h = row % PH + H0
    w = column + W0
    end = tl.where((d >= 0) & (d < D) & (h >= 0) & (h < H), W, 0)  # a row outside the input ends before it begins
    inside = (w >= 0) & (w < end)
    source = x + plane * (C * D * H * W) + (d * H + h) * W
    target = staged + SKEW + plane * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        value = tl.load(source + c[:, None] * (D * H * W) + w[None, :], mask=(c < C)[:, None] & inside[None, :], other=0.0)
        mask = (column < PW)[:, None] & (c < CP)[None, :]
        kmem_store_parts(target + column[:, None] * CP + c[None, :], tl.trans(value), mask, ROUND, LOW)
''',
)

PACK_WEIGHT = (
    "kmem_pack_transposed_weight",
    '''
@triton.jit
def kmem_pack_transposed_weight(
    w, packed, C: tl.constexpr, CP: tl.constexpr, COG: tl.constexpr, COP: tl.constexpr, TAPS: tl.constexpr, SIZE: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):
    """(groups * C, COG, TAPS) to (groups, COP, TAPS, CP), zero above C and COG: a row is one output channel's whole contraction."""
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
def kmem_load_operand(at, ok, WIDEN: tl.constexpr):
    value = tl.load(at, mask=ok, other=0.0 if ok is not None else None)
    return value.to(tl.float32) if WIDEN else value


@triton.jit
def kmem_multiply(tile, weight, low_tile, low_weight, acc, LOW: tl.constexpr, TF32: tl.constexpr):
    """acc + tile @ weight.T, of operands in two parts if LOW > 0."""
    precision: tl.constexpr = "tf32" if TF32 else "ieee"
    if LOW > 0:
        # small terms first; a sum of its own for each step, because long sums inside a tensor core are cut, not rounded
        chunk = tl.dot(tile, tl.trans(low_weight), input_precision=precision)
        chunk = tl.dot(low_tile, tl.trans(weight), chunk, input_precision=precision)
        return acc + tl.dot(tile, tl.trans(weight), chunk, input_precision=precision)
    else:
        return tl.dot(tile, tl.trans(weight), acc, input_precision=precision)
''',
)
