"""Triton text for heads of which fp16 parts do not hold every element of V.

A part is fp16 on the scale of its row: what is below 2**-38 of the row's largest is lost, or has
few digits. A sum of many hides that, but a query that attends to one key is given that key's row as
it is. And a row that is infinite throughout has no scale: a probability times one may become 0, and
NaN where -inf is meant. `kmem_split_rows` says where it happened; of these heads
`kmem_attention_mend` writes the output again, in fp32 throughout, and reads what a mask hides where
the module does (SPREADS). Of numbers drawn from a normal
distribution one in 10**10 is that small.
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .attention import Attention
from .split_rows import loss_programs

BLOCK_M, BLOCK_N = 64, 32
BLOCK_D, MOST_E = 32, 64

MEND = (
    "kmem_attention_mend",
    '''
@triton.jit
def kmem_attention_mend(
    q, k, v, losses, factor, bias, mask, out,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr, INNER: tl.constexpr, SHARED: tl.constexpr,
    LOSSES: tl.constexpr,
    Q_OUTER: tl.constexpr, Q_INNER: tl.constexpr, Q_ROW: tl.constexpr,
    K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_ROW: tl.constexpr,
    SCALE: tl.constexpr, UNIT: tl.constexpr, ACTIVATION: tl.constexpr,
    FACTOR: tl.constexpr, FACTOR_OUTER: tl.constexpr, FACTOR_INNER: tl.constexpr,
    BIAS: tl.constexpr, BIAS_OUTER: tl.constexpr, BIAS_INNER: tl.constexpr, BIAS_ROW: tl.constexpr,
    RAMP: tl.constexpr,
    MASK: tl.constexpr, FILL: tl.constexpr, MASK_OUTER: tl.constexpr, MASK_INNER: tl.constexpr,
    MASK_ROW: tl.constexpr, MASK_PERIOD: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ADDS: tl.constexpr,
    SPREADS: tl.constexpr, EMPTY_IS_ZERO: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """One block of queries of one head, if any of LOSSES programs lost something of what it reads.
    SCALE holds UNIT.
    """
    blocks: tl.constexpr = (QUERIES + BLOCK_M - 1) // BLOCK_M
    pid = tl.program_id(0)
    batch = pid // blocks
    place = tl.arange(0, BLOCK_S)
    lost = tl.load(losses + batch // SHARED * LOSSES + place, mask=place < LOSSES, other=0)
    if tl.max(lost, axis=0) == 0:
        return
    start = pid % blocks * BLOCK_M
    rows = start + tl.arange(0, BLOCK_M)
    row = tl.minimum(rows, QUERIES - 1)
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    q += outer * Q_OUTER + inner * Q_INNER
    k += outer * K_OUTER + inner // SHARED * K_INNER
    v += outer * V_OUTER + inner // SHARED * V_INNER
    mask += outer % MASK_PERIOD * MASK_OUTER + inner * MASK_INNER
    bias = kmem_head_bias(bias + outer * BIAS_OUTER + inner * BIAS_INNER, UNIT, BIAS, RAMP)
    scale = kmem_head_scale(factor + outer * FACTOR_OUTER + inner * FACTOR_INNER, SCALE, FACTOR)
    out += outer * OUT_OUTER + inner * OUT_INNER
    steps = tl.arange(0, BLOCK_D)
    at_q = row.to(tl.int64)[:, None] * Q_ROW + steps[None, :]
    first, last = kmem_seen_keys(start, QUERIES, KEYS, LOW, HIGH, BLOCK_M, BLOCK_N)
    if SPREADS:
        first = 0
        last = KEYS
    for column in range(0, WIDTH, BLOCK_E):
        width = column + tl.arange(0, BLOCK_E)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_E), tl.float32)
        for key in range(first, last, BLOCK_N):
            columns = key + tl.arange(0, BLOCK_N)
            live = (columns < KEYS)[:, None]
            at_k = columns.to(tl.int64)[:, None] * K_ROW + steps[None, :]
            scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for depth in range(0, DEPTH, BLOCK_D):
                within = (depth + steps < DEPTH)[None, :]
                queries = tl.load(q + at_q + depth, mask=within, other=0.0)
                keys = tl.load(k + at_k + depth, mask=live & within, other=0.0)
                scores += tl.dot(queries, tl.trans(keys), input_precision="ieee")
            scores = kmem_scale_scores(
                scores, scale, bias, rows, row, columns,
                KEYS, LOW, HIGH, ADDS, BIAS, BIAS_ROW, RAMP, UNIT, False,
            )
            if MASK != "":
                scores = kmem_mask_scores(
                    scores, mask, row, columns, MASK, FILL, MASK_ROW, UNIT, KEYS
                )
            if ACTIVATION == "softmax":
                higher = tl.maximum(top, tl.max(scores, axis=1))
                shift = tl.where(higher == float("-inf"), 0.0, higher)
                p = tl.exp2(scores - shift[:, None])
                fix = tl.exp2(top - shift)
                total = total * fix + tl.sum(p, axis=1)
                top = higher
            else:
                p = kmem_rectify(scores)
            values = tl.load(
                v + columns.to(tl.int64)[:, None] * V_ROW + width[None, :],
                mask=live & (width < WIDTH)[None, :],
                other=0.0,
            )
            part = tl.dot(p, values, input_precision="ieee")
            acc = acc * fix[:, None] + part if ACTIVATION == "softmax" else acc + part
        if ACTIVATION == "softmax":
            if EMPTY_IS_ZERO:
                total = tl.where(total == 0.0, 1.0, total)
            acc = acc / total[:, None]
        tl.store(
            out + rows.to(tl.int64)[:, None] * OUT_ROW + width[None, :],
            acc,
            mask=(rows < QUERIES)[:, None] & (width < WIDTH)[None, :],
        )
''',
)


def write_mending(detail: Attention) -> str:
    """The launch that follows the one that wrote `out`."""
    strides = (
        f"{name}_OUTER={steps[0]}, {name}_INNER={steps[1]}, {name}_ROW={steps[2]}"
        for name, steps in zip(("Q", "K", "V", "OUT"), detail.steps, strict=True)
    )
    programs = loss_programs(detail)
    return write_launch(
        "kmem_attention_mend",
        detail.heads * ceil_div(detail.queries, BLOCK_M),
        f"q, k, v, losses, {detail.term_arguments}, out",
        f"QUERIES={detail.queries}, KEYS={detail.keys}, DEPTH={detail.depth}, "
        f"WIDTH={detail.width}, INNER={detail.inner}, SHARED={detail.shared}, "
        f"LOSSES={programs}",
        *strides,
        *detail.term_texts,
        f"ACTIVATION={detail.activation!r}, SPREADS={detail.band.spreads}, "
        f"EMPTY_IS_ZERO={detail.empty_is_zero}",
        f"BLOCK_M={BLOCK_M}, BLOCK_N={BLOCK_N}, BLOCK_D={BLOCK_D}, "
        f"BLOCK_E={min(MOST_E, max(16, next_power_of_two(detail.width)))}, "
        f"BLOCK_S={next_power_of_two(programs)}, num_warps=4",
    )
