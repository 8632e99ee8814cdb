"""Triton text that splits rows of Q, K and V into fp16 parts, and helpers of both forms.

fp32 goes through the tensor cores as sums of two fp16 parts of each row, scaled by a power of two
(x = 2**-s * (high + low)), three products each: `kmem_split_rows` writes the parts. A product of
parts is one short chain, small terms first, added to an fp32 sum in registers every step: inside a
tensor core a long sum loses its low bits. The scales of V's rows are divided out of the
probabilities, relative to the largest of a tile. What is left of a query's probabilities is scaled
by its own largest: where a query attends to rows of V that are small beside others of the tile, or
zero, it would have few digits as fp16, or none.

A score is rounded before the largest is found and subtracted. Contracted to one fma, SCALE *
product - largest would take the rounded largest from its own unrounded product: at 1e10 up to 2**9
is left where 0 is meant, and exp2 of that is infinite, or 0.

Source: Ootomo, Yokota, IJHPCA 36(4), 2022, and probes on an H200, 2026-11-20 (split products and
promotion, as in split-fp16-matmul).
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .attention import Attention, padded

PASS_ELEMENTS = 4096  # of one program

SPLIT_ROWS = (
    "kmem_split_rows",
    '''
@triton.jit
def kmem_split_rows(
    x, high, low, exponents, losses,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_ROW: tl.constexpr, PADDED: tl.constexpr,
    TELL: tl.constexpr, LOSSES: tl.constexpr, FIRST_LOSS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(outer, INNER, ROWS, WIDTH) to scaled parts (outer * INNER, ROWS, PADDED), zero above WIDTH,
    and the exponent of each row's scale. If TELL, to the LOSSES of each head, from FIRST_LOSS on
    and for each program, whether a value of its rows is not finite, or not what its parts add up
    to, to six bits.

    A value that is not finite goes into the low part alone: it then meets one product of three, and
    cannot cancel to NaN.
    """
    blocks: tl.constexpr = (ROWS + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    batch = pid // blocks
    rows = pid % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    place = tl.arange(0, BLOCK_W)
    x += (batch // INNER).to(tl.int64) * X_OUTER + (batch % INNER).to(tl.int64) * X_INNER
    inside = (rows < ROWS)[:, None] & (place < WIDTH)[None, :]
    values = tl.load(
        x + rows.to(tl.int64)[:, None] * X_ROW + place[None, :], mask=inside, other=0.0
    )
    bits = kmem_magnitude_bits(values)
    exponent = kmem_exponent(tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1))
    line = batch.to(tl.int64) * ROWS + rows
    tl.store(exponents + line, exponent, mask=rows < ROWS)
    scaled = values * kmem_power_of_two(exponent)[:, None]
    top = scaled.to(tl.float16)
    rest = scaled - top.to(tl.float32)
    finite = rest == rest
    if TELL:
        left = tl.abs(rest - rest.to(tl.float16).to(tl.float32))
        # the value's own bits: a product with a denormal may have been flushed
        lost = (left > tl.abs(scaled) * 0.015625) | ((scaled == 0.0) & (bits > 0))
        found = tl.max(tl.max((lost | ~finite).to(tl.int32), axis=1), axis=0)
        tl.store(losses + batch * LOSSES + FIRST_LOSS + pid % blocks, found)
    target = line[:, None] * PADDED + place[None, :]
    written = (rows < ROWS)[:, None] & (place < PADDED)[None, :]
    tl.store(high + target, tl.where(finite, top, 0.0).to(tl.float16), mask=written)
    tl.store(low + target, tl.where(finite, rest, values).to(tl.float16), mask=written)
''',
)

TILE_HELPERS = (
    "kmem_scale_scores",
    '''
@triton.jit
def kmem_seen_keys(
    start, QUERIES: tl.constexpr, KEYS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Of the keys that any of BLOCK_M queries sees: the first, or one before it at which a block
    begins, and the one behind the last.
    """
    first = start * 0
    last = first + KEYS
    if LOW > -(1 << 30):
        first = tl.maximum(start + LOW, 0) // BLOCK_N * BLOCK_N
    if HIGH < 1 << 30:
        last = tl.minimum(tl.minimum(start + BLOCK_M, QUERIES) + HIGH, KEYS)
    return first, last


@triton.jit
def kmem_whole_keys(
    start, QUERIES: tl.constexpr, KEYS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Of the blocks of keys that all of BLOCK_M queries see: where the first begins, and where the
    last ends.
    """
    first = start * 0
    last = first + KEYS // BLOCK_N * BLOCK_N
    if LOW > -(1 << 30):
        first = tl.maximum(tl.minimum(start + BLOCK_M, QUERIES) - 1 + LOW, 0)
        first = (first + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    if HIGH < 1 << 30:
        last = tl.minimum(last, tl.maximum(start + HIGH + 1, 0) // BLOCK_N * BLOCK_N)
    return first, last


@triton.jit
def kmem_head_scale(factor, SCALE: tl.constexpr, FACTOR: tl.constexpr):
    """SCALE, times or over the factor of a head; rounded once, for all scores err alike by it."""
    scale = tl.full((), SCALE, tl.float64)
    if FACTOR == "times":
        scale *= tl.load(factor).to(tl.float64)
    elif FACTOR == "over":
        scale /= tl.load(factor).to(tl.float64)
    return scale.to(tl.float32)


@triton.jit
def kmem_head_bias(bias, UNIT: tl.constexpr, BIAS: tl.constexpr, RAMP: tl.constexpr):
    """Where the bias of a head begins, or of a ramp its slope."""
    if BIAS == "ramp":
        found = tl.load(bias).to(tl.float32) * (RAMP[7] * UNIT)
    else:
        found = bias
    return found


@triton.jit
def kmem_ramp(rows, columns, RAMP: tl.constexpr):
    """Lines of rows and columns (terms.Ramp), exact: places are whole numbers that fp32 holds."""
    row = rows.to(tl.float32)
    column = columns.to(tl.float32)
    ramp = (row * RAMP[1] + RAMP[3])[:, None] + (column * RAMP[2])[None, :]
    if RAMP[0] > -(1 << 30):
        further = (row * RAMP[4] + RAMP[6])[:, None] + (column * RAMP[5])[None, :]
        ramp = tl.where(columns[None, :] - rows[:, None] < RAMP[0], ramp, further)
    return ramp


@triton.jit
def kmem_scale_scores(
    scores, scale, bias, rows, row, columns,
    KEYS: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, ADDS: tl.constexpr,
    BIAS: tl.constexpr, BIAS_ROW: tl.constexpr, RAMP: tl.constexpr, UNIT: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """scale * scores, with a bias; if not WHOLE, -inf beyond the last key and outside of the band:
    where the mask ADDS that, a score that is not finite stays so.
    """
    # rounded here: no compiler contracts an fma with the subtraction of the largest
    scores = tl.fma(scores, scale, 0.0)
    if BIAS == "ramp":
        scores += kmem_ramp(rows, columns, RAMP) * bias
    elif BIAS != "":
        scores = kmem_mask_scores(scores, bias, row, columns, BIAS, 0.0, BIAS_ROW, UNIT, KEYS)
    if not WHOLE:
        seen = (columns < KEYS)[None, :]
        if HIGH < 1 << 30:
            seen &= columns[None, :] <= rows[:, None] + HIGH
        if LOW > -(1 << 30):
            seen &= columns[None, :] >= rows[:, None] + LOW
        if ADDS:
            scores += tl.where(seen, 0.0, float("-inf"))
        else:
            scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton.jit
def kmem_mask_scores(
    scores, mask, row, columns,
    MASK: tl.constexpr, FILL: tl.constexpr, STEP: tl.constexpr, UNIT: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Scores, among which UNIT is 1, after a mask (terms.Mask)."""
    at = row.to(tl.int64)[:, None] * STEP + columns[None, :]
    found = tl.load(mask + at, mask=(columns < KEYS)[None, :], other=0)
    if MASK == "added":
        scores += found.to(tl.float32) * UNIT
    elif MASK == "admits":
        scores += tl.where(found != 0, 0.0, float("-inf"))
    elif MASK == "hides":
        scores = tl.where(found != 0, FILL, scores)
    else:  # beyond the last key there is none to show
        scores = tl.where((found != 0) | (columns >= KEYS)[None, :], scores, FILL)
    return scores


@triton.jit
def kmem_value_factors(exponents, columns, KEYS: tl.constexpr):
    """For a tile of rows of V: the least exponent of their scales, and 2**(least - exponent) for
    each, so none exceeds 1.
    """
    exponent = tl.load(exponents + columns, mask=columns < KEYS, other=126)
    least = tl.min(exponent, axis=0)
    return least, kmem_power_of_two(tl.maximum(least - exponent, -126))


@triton.jit
def kmem_split_tile(values):
    """fp16 parts of finite values of at most 2**15: what they are, rounded, and the rest."""
    top = values.to(tl.float16)
    return top, (values - top.to(tl.float32)).to(tl.float16)


@triton.jit
def kmem_split_finite(values):
    """fp16 parts of finite values that are not negative, each row on the scale of its largest, and
    its exponent. NaN makes its row's parts NaN.
    """
    exponent = kmem_exponent(tl.max(kmem_magnitude_bits(values), axis=1))
    high, low = kmem_split_tile(values * kmem_power_of_two(exponent)[:, None])
    return high, low, exponent


@triton.jit
def kmem_rectify(scores):
    """relu, in which NaN stays."""
    return tl.where(scores < 0.0, 0.0, scores)


@triton.jit
def kmem_split_scaled(values):
    """fp16 parts of values of any size, each row on the scale of its largest, and its exponent.
    What is not finite goes into the low part alone (kmem_split_rows).
    """
    bits = kmem_magnitude_bits(values)
    exponent = kmem_exponent(tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1))
    scaled = values * kmem_power_of_two(exponent)[:, None]
    high, low = kmem_split_tile(scaled)
    finite = low == low
    zero = tl.zeros_like(high)
    return tl.where(finite, high, zero), tl.where(finite, low, scaled.to(tl.float16)), exponent
''',
)


def _block_rows(rows: int, width: int) -> int:
    """Rows of one program."""
    return min(next_power_of_two(rows), max(1, PASS_ELEMENTS // next_power_of_two(padded(width))))


def split_programs(rows: int, width: int) -> int:
    """Programs that split the rows of one head."""
    return ceil_div(rows, _block_rows(rows, width))


def loss_programs(detail: Attention) -> int:
    """Programs that say of a head of k and v whether parts hold its values, and its keys if a mask
    is added.
    """
    told = split_programs(detail.keys, detail.width)
    return told + (split_programs(detail.keys, detail.depth) if detail.band.is_added else 0)


def write_splitting(detail: Attention) -> list[str]:
    """The statements that write parts and exponents of q, k and v, and `losses` of v."""
    shapes = (
        (detail.heads, detail.queries, detail.depth),
        (detail.key_heads, detail.keys, detail.depth),
        (detail.key_heads, detail.keys, detail.width),
    )
    losses = loss_programs(detail)
    told = {"v": 0}
    if detail.band.is_added:
        told["k"] = split_programs(detail.keys, detail.width)
    statements = [
        f"losses = torch.empty({detail.key_heads * losses}, dtype=torch.int32, device=q.device)"
    ]
    for name, (heads, rows, width), steps in zip("qkv", shapes, detail.steps[:3], strict=True):
        size = heads * rows * padded(width)
        outer, inner = steps[:2]
        row = steps[2]
        statements += [
            f"{name}_high = torch.empty({size}, dtype=torch.float16, device=q.device)",
            f"{name}_low = torch.empty_like({name}_high)",
            f"{name}_exponents = torch.empty({heads * rows}, dtype=torch.int32, device=q.device)",
            write_launch(
                "kmem_split_rows",
                heads * split_programs(rows, width),
                f"{name}, {name}_high, {name}_low, {name}_exponents, losses",
                f"ROWS={rows}, WIDTH={width}, INNER={heads // detail.outer}",
                f"X_OUTER={outer}, X_INNER={inner}, X_ROW={row}, PADDED={padded(width)}",
                f"TELL={name in told}, LOSSES={losses}, FIRST_LOSS={told.get(name, 0)}",
                f"BLOCK_R={_block_rows(rows, width)}, "
                f"BLOCK_W={next_power_of_two(padded(width))}, num_warps=4",
            ),
        ]
    return statements
