"""Triton text for attention with the score matrix once, in half precision: for wide heads.

`kmem_attention_scores` writes exp2(score - largest of the tile's row) in parts, with that largest
score and the sum; `kmem_attention_weights` turns these into one factor per row and tile, and
`kmem_attention_output` applies it to every tile's product, which has to leave the tensor core there
anyway. Operands are parts (split_rows.py). A row whose scores are all -inf gives zeros, as torch's
does.
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div

from .attention import Attention, AttentionSettings, padded

WEIGHT_ROWS = 128  # of one program of kmem_attention_weights
OUTPUT_COLUMNS = 128  # of one program of kmem_attention_output, at most

SCORES = (
    "kmem_attention_scores",
    '''
@triton.jit
def kmem_attention_scores(
    q, q_low, k, k_low, q_exponents, k_exponents, v_exponents,
    factor, bias, mask, p, p_low, tops, sums, shifts,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PADDED_KEYS: tl.constexpr, PADDED_D: tl.constexpr,
    INNER: tl.constexpr, SHARED: tl.constexpr,
    SCALE: tl.constexpr, UNIT: tl.constexpr,
    FACTOR: tl.constexpr, FACTOR_OUTER: tl.constexpr, FACTOR_INNER: tl.constexpr,
    BIAS: tl.constexpr, BIAS_OUTER: tl.constexpr, BIAS_INNER: tl.constexpr, BIAS_ROW: tl.constexpr,
    RAMP: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_OUTER: tl.constexpr, MASK_INNER: tl.constexpr,
    MASK_ROW: tl.constexpr, MASK_PERIOD: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ADDS: tl.constexpr, ALL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of queries by keys: parts of exp2(score - top), times the factors of V's rows; and of
    each query its top, its sum, and the exponent that its product with V's parts is scaled by. If
    ALL, no product of parts is left out of a score.
    """
    tiles_m: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = PADDED_KEYS // BLOCK_N
    pid = tl.program_id(0)
    tile_n = pid % tiles_n
    tile_m = pid // tiles_n % tiles_m
    batch = pid // (tiles_n * tiles_m)
    whole: tl.constexpr = KEYS == PADDED_KEYS and LOW <= -(1 << 30) and HIGH >= 1 << 30
    first, last = kmem_seen_keys(tile_m * BLOCK_M, QUERIES, KEYS, LOW, HIGH, BLOCK_M, BLOCK_N)
    if (tile_n * BLOCK_N < first) | (tile_n * BLOCK_N >= last):
        return  # no row of these attends to the tile
    pair = batch // SHARED  # the head of k and v
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(rows, QUERIES - 1)
    column = tl.minimum(columns, KEYS - 1)
    steps = tl.arange(0, BLOCK_K)
    at_q = (batch.to(tl.int64) * QUERIES + row)[:, None] * PADDED_D + steps[None, :]
    at_k = (pair.to(tl.int64) * KEYS + column)[:, None] * PADDED_D + steps[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, PADDED_D, BLOCK_K):
        queries = tl.load(q + at_q + start)
        keys = tl.load(k + at_k + start)
        low_queries = tl.load(q_low + at_q + start)
        low_keys = tl.load(k_low + at_k + start)
        part = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if ALL:
            part = tl.dot(low_queries, tl.trans(low_keys))
        part = tl.dot(low_queries, tl.trans(keys), part)
        part = tl.dot(queries, tl.trans(low_keys), part)
        part = tl.dot(queries, tl.trans(keys), part)
        acc += part
    acc = kmem_unscale(
        acc,
        tl.load(q_exponents + batch * QUERIES + row),
        tl.load(k_exponents + pair * KEYS + column),
    )
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    mask += outer % MASK_PERIOD * MASK_OUTER + inner * MASK_INNER
    bias = kmem_head_bias(bias + outer * BIAS_OUTER + inner * BIAS_INNER, UNIT, BIAS, RAMP)
    scale = kmem_head_scale(factor + outer * FACTOR_OUTER + inner * FACTOR_INNER, SCALE, FACTOR)
    acc = kmem_scale_scores(
        acc, scale, bias, rows, row, columns,
        KEYS, LOW, HIGH, ADDS, BIAS, BIAS_ROW, RAMP, UNIT, whole,
    )
    if MASK != "":
        acc = kmem_mask_scores(acc, mask, row, columns, MASK, FILL, MASK_ROW, UNIT, KEYS)
    top = tl.max(acc, axis=1)
    weights = tl.exp2(acc - tl.where(top == float("-inf"), 0.0, top)[:, None])
    least, factor = kmem_value_factors(v_exponents + pair * KEYS, columns, KEYS)
    high, low, exponent = kmem_split_finite(weights * factor[None, :])
    at_row = (batch * tiles_n + tile_n).to(tl.int64) * QUERIES + rows
    tl.store(tops + at_row, top, mask=rows < QUERIES)
    tl.store(sums + at_row, tl.sum(weights, axis=1), mask=rows < QUERIES)
    tl.store(shifts + at_row, least + exponent, mask=rows < QUERIES)
    at_p = (batch.to(tl.int64) * QUERIES + rows)[:, None] * PADDED_KEYS + columns[None, :]
    inside = (rows < QUERIES)[:, None]
    tl.store(p + at_p, high, mask=inside)
    tl.store(p_low + at_p, low, mask=inside)
''',
)

WEIGHTS = (
    "kmem_attention_weights",
    '''
@triton.jit
def kmem_attention_weights(
    tops, sums, shifts, weights, scales,
    QUERIES: tl.constexpr, TILES: tl.constexpr, FIRST: tl.constexpr, ATTENDED: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):
    """weights[batch, tile, row] = exp2(top of tile - top of row) / sum of row * 2**(scale of row -
    shift of the row in the tile), where its scale is the least of its shifts.

    Some row attends to the tiles from FIRST to ATTENDED. Of the others nothing is known, and
    nothing is asked.
    """
    blocks: tl.constexpr = (QUERIES + BLOCK_R - 1) // BLOCK_R
    pid = tl.program_id(0)
    batch = pid // blocks
    rows = pid % blocks * BLOCK_R + tl.arange(0, BLOCK_R)
    base = batch.to(tl.int64) * (TILES * QUERIES) + rows
    top = tl.full((BLOCK_R,), float("-inf"), tl.float32)
    smallest = tl.full((BLOCK_R,), 252, tl.int32)  # of a row that attends to nothing
    for tile in range(FIRST, ATTENDED):
        live = (rows < QUERIES) & (tile * BLOCK_N <= rows + HIGH)
        live &= tile * BLOCK_N + BLOCK_N > rows + LOW
        shift = tl.load(shifts + base + tile * QUERIES, mask=live, other=252)
        smallest = tl.minimum(smallest, shift)
        top = tl.maximum(top, tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf")))
    highest = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((BLOCK_R,), tl.float32)
    for tile in range(FIRST, ATTENDED):
        live = (rows < QUERIES) & (tile * BLOCK_N <= rows + HIGH)
        live &= tile * BLOCK_N + BLOCK_N > rows + LOW
        found = tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf"))
        total += tl.exp2(found - highest) * tl.load(
            sums + base + tile * QUERIES, mask=live, other=0.0
        )
    if EMPTY_IS_ZERO:
        total = tl.where(total == 0.0, 1.0, total)
    for tile in range(FIRST, ATTENDED):
        live = (rows < QUERIES) & (tile * BLOCK_N <= rows + HIGH)
        live &= tile * BLOCK_N + BLOCK_N > rows + LOW
        found = tl.exp2(
            tl.load(tops + base + tile * QUERIES, mask=live, other=float("-inf")) - highest
        )
        shift = tl.load(shifts + base + tile * QUERIES, mask=live, other=252)
        unit = kmem_power_of_two(tl.maximum(smallest - shift, -126))
        tl.store(
            weights + base + tile * QUERIES,
            unit * found / total,
            mask=rows < QUERIES,
        )
    tl.store(scales + batch.to(tl.int64) * QUERIES + rows, smallest, mask=rows < QUERIES)
''',
)

OUTPUT = (
    "kmem_attention_output",
    '''
@triton.jit
def kmem_attention_output(
    p, p_low, v, v_low, weights, scales, out,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, PADDED_KEYS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED_E: tl.constexpr, TILE: tl.constexpr, INNER: tl.constexpr,
    SHARED: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_ROW: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """A tile of queries by output columns: for every step of keys its product times the weight of
    the rows in the step's tile.
    """
    tiles_m: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    tiles_e: tl.constexpr = PADDED_E // BLOCK_E
    pid = tl.program_id(0)
    tile_m = pid % tiles_m
    tile_e = pid // tiles_m % tiles_e
    batch = pid // (tiles_m * tiles_e)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tile_e * BLOCK_E + tl.arange(0, BLOCK_E)
    row = tl.minimum(rows, QUERIES - 1)
    steps = tl.arange(0, BLOCK_K)
    at_p = (batch.to(tl.int64) * QUERIES + row)[:, None] * PADDED_KEYS + steps[None, :]
    base_v = (batch // SHARED).to(tl.int64) * KEYS
    weights += batch.to(tl.int64) * (PADDED_KEYS // TILE * QUERIES) + row
    first, last = kmem_seen_keys(tile_m * BLOCK_M, QUERIES, KEYS, LOW, HIGH, BLOCK_M, TILE)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    for start in range(first, last, BLOCK_K):
        key = start + steps
        at_v = (base_v + key)[:, None] * PADDED_E + width[None, :]
        high = tl.load(p + at_p + start)
        if KEYS == PADDED_KEYS:
            values = tl.load(v + at_v)
            low_values = tl.load(v_low + at_v)
        else:
            values = tl.load(v + at_v, mask=(key < KEYS)[:, None], other=0.0)
            low_values = tl.load(v_low + at_v, mask=(key < KEYS)[:, None], other=0.0)
        part = tl.dot(tl.load(p_low + at_p + start), values)
        part = tl.dot(high, low_values, part)
        part = tl.dot(high, values, part)
        weight = tl.load(weights + start // TILE * QUERIES)
        acc += part * weight[:, None]
    scale = -tl.load(scales + batch.to(tl.int64) * QUERIES + row)  # in two steps of normal factors
    half = scale >> 1
    acc = acc * kmem_power_of_two(half)[:, None] * kmem_power_of_two(scale - half)[:, None]
    if not EMPTY_IS_ZERO:  # there may be no step in which a row that sees nothing becomes that
        blind = (rows + HIGH < 0) | (rows + LOW >= KEYS)
        acc = tl.where(blind[:, None], float("nan"), acc)
    at_out = (batch // INNER).to(tl.int64) * OUT_OUTER + (batch % INNER).to(tl.int64) * OUT_INNER
    at_out += rows.to(tl.int64)[:, None] * OUT_ROW + width[None, :]
    tl.store(
        out + at_out,
        acc.to(out.dtype.element_ty),
        mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :],
    )
''',
)


def output_columns(detail: Attention) -> int:
    """Columns of a tile of the output: as many as divide the padded width."""
    width = padded(detail.width)
    return min(OUTPUT_COLUMNS, width & -width)


def write_two_stages(detail: Attention, knobs: AttentionSettings) -> list[str]:
    """The statements that write the probabilities, their weights, and `out`."""
    tiles = ceil_div(detail.keys, knobs.block_n)
    padded_keys = tiles * knobs.block_n
    queries = detail.heads * detail.queries
    probabilities = queries * padded_keys
    rows = tiles * queries
    return [
        f"p = torch.empty({probabilities}, dtype=torch.float16, device=q.device)",
        "p_low = torch.empty_like(p)",
        f"tops = torch.empty({rows}, dtype=torch.float32, device=q.device)",
        "sums = torch.empty_like(tops)",
        f"shifts = torch.empty({rows}, dtype=torch.int32, device=q.device)",
        _write_scores(detail, knobs, tiles),
        "weights = torch.empty_like(tops)",
        f"scales = torch.empty({queries}, dtype=torch.int32, device=q.device)",
        _write_weights(detail, knobs, tiles),
        _write_output(detail, knobs, padded_keys),
    ]


def _sizes(detail: Attention, knobs: AttentionSettings, padded_keys: int) -> str:
    return (
        f"QUERIES={detail.queries}, KEYS={detail.keys}, PADDED_KEYS={padded_keys}, "
        f"SHARED={detail.shared}, BLOCK_M={knobs.block_m}"
    )


def _write_scores(detail: Attention, knobs: AttentionSettings, tiles: int) -> str:
    depth = padded(detail.depth)
    return write_launch(
        "kmem_attention_scores",
        detail.heads * ceil_div(detail.queries, knobs.block_m) * tiles,
        "q_high, q_low, k_high, k_low, q_exponents, k_exponents, v_exponents",
        f"{detail.term_arguments}, p, p_low, tops, sums, shifts",
        _sizes(detail, knobs, tiles * knobs.block_n),
        f"PADDED_D={depth}, INNER={detail.inner}",
        *detail.term_texts,
        f"ALL={knobs.accuracy > 0}",
        f"BLOCK_N={knobs.block_n}, BLOCK_K={min(knobs.block_k, depth & -depth)}",
        knobs.run,
    )


def _write_weights(detail: Attention, knobs: AttentionSettings, tiles: int) -> str:
    first, last = detail.band.seen_keys(detail.queries, detail.keys)
    return write_launch(
        "kmem_attention_weights",
        detail.heads * ceil_div(detail.queries, WEIGHT_ROWS),
        "tops, sums, shifts, weights, scales",
        f"QUERIES={detail.queries}, TILES={tiles}, FIRST={first // knobs.block_n}, "
        f"ATTENDED={ceil_div(last, knobs.block_n)}",
        f"LOW={detail.band.first}, HIGH={detail.band.last}",
        f"EMPTY_IS_ZERO={detail.empty_is_zero}, BLOCK_N={knobs.block_n}, BLOCK_R={WEIGHT_ROWS}",
    )


def _write_output(detail: Attention, knobs: AttentionSettings, padded_keys: int) -> str:
    width, block_e = padded(detail.width), output_columns(detail)
    outer, inner = detail.steps[3][:2]
    row = detail.steps[3][2]
    return write_launch(
        "kmem_attention_output",
        detail.heads * ceil_div(detail.queries, knobs.block_m) * (width // block_e),
        "p, p_low, v_high, v_low, weights, scales, out",
        _sizes(detail, knobs, padded_keys),
        f"WIDTH={detail.width}, PADDED_E={width}, TILE={knobs.block_n}, INNER={detail.inner}",
        f"OUT_OUTER={outer}, OUT_INNER={inner}, OUT_ROW={row}",
        f"LOW={detail.band.first}, HIGH={detail.band.last}",
        f"EMPTY_IS_ZERO={detail.empty_is_zero}",
        f"BLOCK_E={block_e}, BLOCK_K={min(knobs.block_k, knobs.block_n)}",
        knobs.run,
    )
