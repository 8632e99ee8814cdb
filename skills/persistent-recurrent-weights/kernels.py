"""The kernels of a recurrent layer: its input product, and all its steps in one launch."""

#: All input products of a layer and direction, with its biases.
INPUTS = (
    "kmem_recurrent_inputs",
    '''
@triton.jit
def kmem_recurrent_rounded(x, PRECISION: tl.constexpr):
    # tl.dot would cut off what TF32 has no room for; NaN stays NaN whatever its payload
    if PRECISION == "tf32":
        near = ((x.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
        x = tl.where(x == x, near, x)
    return x


@triton.jit
def kmem_recurrent_inputs(
    x, w, bias, other, result,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BATCH: tl.constexpr,
    X_T: tl.constexpr, X_B: tl.constexpr, X_K: tl.constexpr,
    RESULT_ROW: tl.constexpr, PLACE: tl.constexpr,
    HAS_BIAS: tl.constexpr, OTHER_UNTIL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """Row t * BATCH + b of the result is w x[t, b] + bias; first columns have `other` added."""
    tiles: tl.constexpr = (COLUMNS + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    rows = (pid // tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (pid % tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    start = (rows // BATCH).to(tl.int64) * X_T + (rows % BATCH).to(tl.int64) * X_B
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, DEPTH, BLOCK_K):
        ks = k + tl.arange(0, BLOCK_K)
        a = tl.load(
            x + start[:, None] + ks[None, :] * X_K,
            mask=(rows < ROWS)[:, None] & (ks < DEPTH)[None, :], other=0.0,
        )
        b = tl.load(
            w + columns[None, :] * DEPTH + ks[:, None],
            mask=(columns < COLUMNS)[None, :] & (ks < DEPTH)[:, None], other=0.0,
        )
        a = kmem_recurrent_rounded(a, PRECISION)
        b = kmem_recurrent_rounded(b, PRECISION)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias + columns, mask=columns < COLUMNS, other=0.0).to(tl.float32)[None, :]
        acc += tl.load(other + columns, mask=columns < OTHER_UNTIL, other=0.0).to(tl.float32)[
            None, :
        ]
    tl.store(
        result + rows.to(tl.int64)[:, None] * RESULT_ROW + PLACE + columns[None, :], acc,
        mask=(rows < ROWS)[:, None] & (columns < COLUMNS)[None, :],
    )
''',
)

#: All steps of a layer: `programs` share the hidden units of a direction and wait for one another
#: after each step, so all of them must be resident; a single one has all units.
STEPS = (
    "kmem_recurrent_steps",
    '''
@triton.jit
def kmem_recurrent_sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def kmem_recurrent_tanh(x):
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    a = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0.0, -large, large))


@triton.jit
def kmem_recurrent_given(
    inputs, t, u, b, direction, needed,
    GATES: tl.constexpr, BATCH: tl.constexpr, HIDDEN: tl.constexpr, DIRECTIONS: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr,
):
    """What the inputs give the gates of some units at a step; zeros for gates there are not."""
    row = (t * BATCH + b)[:, None] * (DIRECTIONS * GATES * HIDDEN)
    place = inputs + row + direction * GATES * HIDDEN + u[None, :]
    x0 = tl.load(place, mask=needed, other=0.0)
    x1 = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
    x2 = x1
    x3 = x1
    if GATES > 1:
        x1 = tl.load(place + HIDDEN, mask=needed, other=0.0)
        x2 = tl.load(place + 2 * HIDDEN, mask=needed, other=0.0)
    if GATES > 3:
        x3 = tl.load(place + 3 * HIDDEN, mask=needed, other=0.0)
    return x0, x1, x2, x3


@triton.jit
def kmem_recurrent_cell(
    acc, x0, x1, x2, x3, before, c, bias, u,
    KIND: tl.constexpr, GATES: tl.constexpr, HIDDEN: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr,
):
    """The new hidden state and cell from the recurrent product and what the inputs give."""
    if GATES > 1:
        even, odd = tl.split(tl.reshape(acc, (BLOCK_B, BLOCK_H, 2, 2)))
        acc0, acc2 = tl.split(even)
        acc1, acc3 = tl.split(odd)
        acc1 += x1
    else:
        acc0 = acc
    acc0 += x0
    if KIND == "lstm":
        kept = kmem_recurrent_sigmoid(acc1) * c
        c = kept + kmem_recurrent_sigmoid(acc0) * kmem_recurrent_tanh(acc2 + x2)
        new = kmem_recurrent_sigmoid(acc3 + x3) * kmem_recurrent_tanh(c)
    elif KIND == "gru":
        if HAS_BIAS:
            acc2 += tl.load(
                bias + 2 * HIDDEN + u, mask=u < HIDDEN, other=0.0
            ).to(tl.float32)[None, :]
        n = kmem_recurrent_tanh(x2 + kmem_recurrent_sigmoid(acc0) * acc2)
        z = kmem_recurrent_sigmoid(acc1)
        new = (1.0 - z) * n + z * before
    elif KIND == "rnn_tanh":
        new = kmem_recurrent_tanh(acc0)
    else:
        new = tl.where(acc0 < 0, 0.0, acc0)  # keeps a NaN
    return new, c


@triton.jit
def kmem_recurrent_steps(
    inputs, forward, backward, bias_forward, bias_backward, h0, c0, out, hn, cn, cells, counts,
    programs,
    KIND: tl.constexpr, GATES: tl.constexpr, STEPS: tl.constexpr, BATCH: tl.constexpr,
    HIDDEN: tl.constexpr, DIRECTIONS: tl.constexpr, OUT_T: tl.constexpr, OUT_B: tl.constexpr,
    PLACE: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):
    """out[t] from inputs[t] and out[t - 1]; the second direction goes from the end.

    RESIDENT: a program has one block of units, and BLOCK_K holds all of them; it keeps its weights,
    hidden state and cells, and asks for the inputs of the next step before it waits for the others.
    SHARED columns of the product belong to one unit, a power of two. Cells stay in fp32 from step
    to step. Steps are read past L1, which does not know what other programs wrote.
    """
    blocks: tl.constexpr = (HIDDEN + BLOCK_H - 1) // BLOCK_H
    pid = tl.program_id(0)
    direction = tl.program_id(1)
    w = forward
    bias = bias_forward
    if direction == 1:
        w = backward
        bias = bias_backward
    b = tl.arange(0, BLOCK_B)
    state = PLACE + direction * BATCH * HIDDEN  # of this direction, in what is kept of all layers
    column = tl.arange(0, SHARED * BLOCK_H)  # the gates of a unit lie side by side
    gate = column % SHARED
    if RESIDENT:
        all_k = tl.arange(0, BLOCK_K)
        unit = pid * BLOCK_H + column // SHARED
        weights = tl.load(
            w + (gate * HIDDEN + unit)[None, :] * HIDDEN + all_k[:, None],
            mask=((unit < HIDDEN) & (gate < GATES))[None, :] & (all_k < HIDDEN)[:, None], other=0.0,
        )
        weights = kmem_recurrent_rounded(weights, PRECISION)
        u = pid * BLOCK_H + tl.arange(0, BLOCK_H)
        fits = (b < BATCH)[:, None] & (u < HIDDEN)[None, :]
        own = state + b[:, None] * HIDDEN + u[None, :]
        before = tl.load(h0 + own, mask=fits, other=0.0).to(tl.float32)
        c = tl.load(c0 + own, mask=fits, other=0.0).to(tl.float32)
        first = 0
        if direction == 1:
            first = STEPS - 1
        x0, x1, x2, x3 = kmem_recurrent_given(
            inputs, first, u, b, direction, fits,
            GATES, BATCH, HIDDEN, DIRECTIONS, BLOCK_B, BLOCK_H,
        )
        for step in range(STEPS):
            t = step
            last = step - 1
            after = step + 1
            if direction == 1:
                t = STEPS - 1 - step
                last = STEPS - step
                after = STEPS - 2 - step
            given = (b < BATCH)[:, None] & (all_k < HIDDEN)[None, :]
            if step == 0:
                h = tl.load(
                    h0 + state + b[:, None] * HIDDEN + all_k[None, :], mask=given, other=0.0
                )
            else:
                h = tl.load(
                    out + last * OUT_T + direction * HIDDEN + b[:, None] * OUT_B + all_k[None, :],
                    mask=given, other=0.0, cache_modifier=".cg",
                )
            h = kmem_recurrent_rounded(h, PRECISION)
            acc = tl.dot(h, weights, input_precision=PRECISION)
            new, c = kmem_recurrent_cell(
                acc, x0, x1, x2, x3, before, c, bias, u,
                KIND, GATES, HIDDEN, HAS_BIAS, BLOCK_B, BLOCK_H,
            )
            result = new.to(out.dtype.element_ty)
            before = result.to(tl.float32)
            place = out + t * OUT_T + direction * HIDDEN
            tl.store(place + b[:, None] * OUT_B + u[None, :], result, mask=fits)
            tl.debug_barrier()
            tl.atomic_add(counts + direction, 1, sem="release", scope="gpu")
            x0, x1, x2, x3 = kmem_recurrent_given(
                inputs, after, u, b, direction, fits & (step < STEPS - 1),
                GATES, BATCH, HIDDEN, DIRECTIONS, BLOCK_B, BLOCK_H,
            )
            while tl.atomic_add(counts + direction, 0, sem="acquire", scope="gpu") < (
                step + 1
            ) * programs:
                pass
        tl.store(hn + own, before.to(hn.dtype.element_ty), mask=fits)
        if KIND == "lstm":
            tl.store(cn + own, c.to(cn.dtype.element_ty), mask=fits)
    else:
        for step in range(STEPS):
            t = step
            last = step - 1
            if direction == 1:
                t = STEPS - 1 - step
                last = STEPS - step
            hidden = out + last * OUT_T + direction * HIDDEN
            for block in range(pid, blocks, programs):
                u = block * BLOCK_H + tl.arange(0, BLOCK_H)
                unit = block * BLOCK_H + column // SHARED
                fits = (b < BATCH)[:, None] & (u < HIDDEN)[None, :]
                own = b[:, None] * HIDDEN + u[None, :]
                acc = tl.zeros((BLOCK_B, SHARED * BLOCK_H), tl.float32)
                for k in range(0, HIDDEN, BLOCK_K):
                    ks = k + tl.arange(0, BLOCK_K)
                    given = (b < BATCH)[:, None] & (ks < HIDDEN)[None, :]
                    if step == 0:
                        h = tl.load(
                            h0 + state + b[:, None] * HIDDEN + ks[None, :], mask=given, other=0.0
                        )
                    else:
                        h = tl.load(
                            hidden + b[:, None] * OUT_B + ks[None, :], mask=given, other=0.0,
                            cache_modifier=".cg",
                        )
                    used = ((unit < HIDDEN) & (gate < GATES))[None, :] & (ks < HIDDEN)[:, None]
                    weights = tl.load(
                        w + (gate * HIDDEN + unit)[None, :] * HIDDEN + ks[:, None],
                        mask=used, other=0.0,
                    )
                    h = kmem_recurrent_rounded(h, PRECISION)
                    weights = kmem_recurrent_rounded(weights, PRECISION)
                    acc = tl.dot(h, weights, acc, input_precision=PRECISION)
                x0, x1, x2, x3 = kmem_recurrent_given(
                    inputs, t, u, b, direction, fits,
                    GATES, BATCH, HIDDEN, DIRECTIONS, BLOCK_B, BLOCK_H,
                )
                c = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
                before = c
                kept = cells + direction * BATCH * HIDDEN + own
                if step == 0:
                    before = tl.load(h0 + state + own, mask=fits, other=0.0).to(tl.float32)
                    if KIND == "lstm":
                        c = tl.load(c0 + state + own, mask=fits, other=0.0).to(tl.float32)
                else:
                    before = tl.load(
                        hidden + b[:, None] * OUT_B + u[None, :], mask=fits, other=0.0,
                        cache_modifier=".cg",
                    ).to(tl.float32)
                    if KIND == "lstm":
                        c = tl.load(kept, mask=fits, other=0.0, cache_modifier=".cg")
                new, c = kmem_recurrent_cell(
                    acc, x0, x1, x2, x3, before, c, bias, u,
                    KIND, GATES, HIDDEN, HAS_BIAS, BLOCK_B, BLOCK_H,
                )
                if KIND == "lstm":
                    tl.store(kept, c, mask=fits)
                    if step == STEPS - 1:
                        tl.store(cn + state + own, c.to(cn.dtype.element_ty), mask=fits)
                new = new.to(out.dtype.element_ty)
                place = out + t * OUT_T + direction * HIDDEN
                tl.store(place + b[:, None] * OUT_B + u[None, :], new, mask=fits)
                if step == STEPS - 1:
                    tl.store(hn + state + own, new, mask=fits)
            tl.debug_barrier()
            tl.atomic_add(counts + direction, 1, sem="release", scope="gpu")
            while tl.atomic_add(counts + direction, 0, sem="acquire", scope="gpu") < (
                step + 1
            ) * programs:
                pass
''',
)
