"""Triton text for attention without the score matrix, for narrow heads.

A block of queries keeps its output in registers while keys and values stream by (online softmax).
bf16 and fp16 are multiplied as they are, fp32 as parts (split_rows.py). A row whose scores are all
-inf gives zeros, as torch's operator does, or NaN, as its softmax does (EMPTY_IS_ZERO).

Source: Dao, "FlashAttention-2", arXiv 2307.08691 (online softmax).
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .attention import Attention, AttentionSettings, padded

FUSED = (
    "kmem_attention",
    '''
@triton.jit
def kmem_attention(
    q, k, v, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents, hidden, out,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, INNER: tl.constexpr, SCALE: tl.constexpr,
    Q_OUTER: tl.constexpr, Q_INNER: tl.constexpr, Q_ROW: tl.constexpr,
    K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_ROW: tl.constexpr,
    HIDES: tl.constexpr, HIDDEN_OUTER: tl.constexpr, HIDDEN_INNER: tl.constexpr,
    HIDDEN_ROW: tl.constexpr,
    CAUSAL: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr, SPLIT: tl.constexpr, WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """One block of queries of one head. SCALE holds log2(e); with SPLIT, q, k and v are the high
    parts.
    """
    blocks: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    even: tl.constexpr = KEYS % BLOCK_N == 0
    pid = tl.program_id(0)
    batch = pid // blocks
    block = pid % blocks
    if CAUSAL:
        block = blocks - 1 - block  # the longest first
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    depth = tl.arange(0, BLOCK_D)
    width = tl.arange(0, BLOCK_E)
    row = tl.minimum(rows, QUERIES - 1)
    at_q = outer * Q_OUTER + inner * Q_INNER + row.to(tl.int64)[:, None] * Q_ROW + depth[None, :]
    within = (depth < DEPTH)[None, :]
    queries = tl.load(q + at_q, mask=within, other=0.0)
    base_k = outer * K_OUTER + inner * K_INNER
    base_v = outer * V_OUTER + inner * V_INNER
    hidden += outer * HIDDEN_OUTER + inner * HIDDEN_INNER
    if SPLIT:
        low_queries = tl.load(q_low + at_q, mask=within, other=0.0)
        q_exponent = tl.load(q_exponents + batch * QUERIES + row)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
    last = KEYS
    if CAUSAL:
        last = tl.minimum(KEYS, (block + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        at_k = base_k + columns.to(tl.int64)[:, None] * K_ROW + depth[None, :]
        at_v = base_v + columns.to(tl.int64)[:, None] * V_ROW + width[None, :]
        if even and BLOCK_D == DEPTH:
            keys = tl.load(k + at_k)
        else:
            keys = tl.load(k + at_k, mask=(columns < KEYS)[:, None] & within, other=0.0)
        if even and BLOCK_E == WIDTH:
            values = tl.load(v + at_v)
        else:
            values = tl.load(
                v + at_v, mask=(columns < KEYS)[:, None] & (width < WIDTH)[None, :], other=0.0
            )
        if SPLIT:
            if even and BLOCK_D == DEPTH:
                low_keys = tl.load(k_low + at_k)
            else:
                low_keys = tl.load(k_low + at_k, mask=(columns < KEYS)[:, None] & within, other=0.0)
            if even and BLOCK_E == WIDTH:
                low_values = tl.load(v_low + at_v)
            else:
                low_values = tl.load(
                    v_low + at_v,
                    mask=(columns < KEYS)[:, None] & (width < WIDTH)[None, :],
                    other=0.0,
                )
            scores = tl.dot(low_queries, tl.trans(keys))
            scores = tl.dot(queries, tl.trans(low_keys), scores)
            scores = tl.dot(queries, tl.trans(keys), scores)
            k_exponent = tl.load(k_exponents + batch * KEYS + columns, mask=columns < KEYS, other=0)
            scores = kmem_unscale(scores, q_exponent, k_exponent)
        elif WIDEN:
            scores = tl.dot(
                queries.to(tl.float32), tl.trans(keys.to(tl.float32)), input_precision="ieee"
            )
        else:
            scores = tl.dot(queries, tl.trans(keys))
        scores = kmem_scale_scores(scores, rows, columns, SCALE, KEYS, CAUSAL, even)
        if HIDES:
            scores = kmem_hide(scores, hidden, row, columns, HIDDEN_ROW, KEYS)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(scores - shift[:, None])
        fix = tl.exp2(top - shift)
        total = total * fix + tl.sum(p, axis=1)
        if SPLIT:
            least, factor = kmem_value_factors(v_exponents + batch * KEYS, columns, KEYS)
            p_high, p_low = kmem_split_tile(p * factor[None, :])
            part = tl.dot(p_low, values)
            part = tl.dot(p_high, low_values, part)
            part = tl.dot(p_high, values, part)
            acc = (
                acc * fix[:, None]
                + part
                * kmem_power_of_two((-least) >> 1)
                * kmem_power_of_two(-least - ((-least) >> 1) - 14)
            )
        elif WIDEN:
            acc = acc * fix[:, None] + tl.dot(
                p.to(values.dtype).to(tl.float32), values.to(tl.float32), input_precision="ieee"
            )
        else:
            acc = tl.dot(p.to(values.dtype), values, acc * fix[:, None])
        top = higher
    if EMPTY_IS_ZERO:
        total = tl.where(total == 0.0, 1.0, total)
    acc = acc / total[:, None]
    at_out = (
        outer * OUT_OUTER
        + inner * OUT_INNER
        + rows.to(tl.int64)[:, None] * OUT_ROW
        + width[None, :]
    )
    tl.store(
        out + at_out,
        acc.to(out.dtype.element_ty),
        mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :],
    )
''',
)

#: Without parts the kernel reads only the first three.
_WHOLE = "q, k, v, q, k, v, out, out, out"
_PARTS = "q_high, k_high, v_high, q_low, k_low, v_low, q_exponents, k_exponents, v_exponents"


def write_fused(detail: Attention, knobs: AttentionSettings) -> list[str]:
    """The launch that writes `out`."""
    strides = (
        ", ".join(
            f"{name}_{axis}={step}"
            for axis, step in zip(("OUTER", "INNER", "ROW"), steps, strict=True)
        )
        for name, steps in zip(("Q", "K", "V", "OUT"), _steps(detail), strict=True)
    )
    launch = write_launch(
        "kmem_attention",
        detail.heads * ceil_div(detail.queries, knobs.block_m),
        f"{_PARTS if detail.is_split else _WHOLE}, {detail.mask}, out",
        f"QUERIES={detail.queries}, KEYS={detail.keys}, DEPTH={detail.depth}, "
        f"WIDTH={detail.width}, INNER={detail.inner}, SCALE={detail.log2_scale!r}",
        *strides,
        detail.write_mask(),
        f"CAUSAL={detail.causal}, EMPTY_IS_ZERO={detail.empty_is_zero}, SPLIT={detail.is_split}, "
        f"WIDEN={'False' if detail.is_split else 'q.is_cpu'}",
        f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, "
        f"BLOCK_D={max(16, next_power_of_two(detail.depth))}, "
        f"BLOCK_E={max(16, next_power_of_two(detail.width))}",
        knobs.run,
    )
    return [launch]


def _steps(detail: Attention) -> tuple[tuple[int, int, int], ...]:
    """Steps of q, k, v and out as the kernel reads them; parts are dense."""
    if not detail.is_split:
        return detail.steps
    lengths = (
        (detail.queries, padded(detail.depth)),
        (detail.keys, padded(detail.depth)),
        (detail.keys, padded(detail.width)),
    )
    dense = ((detail.inner * rows * width, rows * width, width) for rows, width in lengths)
    return (*dense, detail.steps[3])
