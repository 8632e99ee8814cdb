"""Triton text for what sums over the positions of a convolution that the library made.

`kmem_nhwc_statistics` reads the library's result in half precision, does what precedes the norm or
the sum on each tile, and leaves of each channel of each part of an image a mean and a sum of
squared deviations, or a sum. `kmem_nhwc_settle` makes of these what a norm multiplies by and adds,
and moves the running statistics of a batch norm along; `kmem_nhwc_total` adds sums up. So neither
the tensor that a norm reads nor the one that a mean reads is ever written.
"""

STATISTICS = (
    "kmem_nhwc_statistics",
    '''
@triton.jit
def kmem_nhwc_statistics(
    y, more, exponents, w_exponents, found, squares,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    YN: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr,
    SCALED: tl.constexpr, CENTRED: tl.constexpr, PARTS: tl.constexpr, TURNS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """Of each channel of one of PARTS parts of an image, TURNS tiles: its mean and the sum of
    squared deviations from it (CENTRED), or its sum: (images, PARTS, channels).
    """
    row_blocks: tl.constexpr = (M + BLOCK_C - 1) // BLOCK_C
    size: tl.constexpr = WD * WH * WW
    pid = tl.program_id(0)
    rows = pid % row_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    part = pid // row_blocks % PARTS
    batch = pid // (row_blocks * PARTS)
    most = tl.zeros((BLOCK_P // size,), tl.float32)  # values that a lane has met
    mean = tl.zeros((BLOCK_C, BLOCK_P // size), tl.float32)
    spread = tl.zeros((BLOCK_C, BLOCK_P // size), tl.float32)
    for turn in tl.range(TURNS, num_stages=3):
        columns = kmem_nhwc_columns(part * TURNS + turn, BLOCK_P, size)
        acc = kmem_nhwc_read(
            y, more, exponents, w_exponents, batch, rows, columns,
            MP, N, BATCH_INNER, YN, YH, YW, OH, OW, SD, SH, SW, PD, PH, PW, RD, RH, RW,
            WD, WH, WW, SCALED, False,
        )
        if AFTER is not None:
            acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
        if size > 1:
            columns = kmem_nhwc_columns(part * TURNS + turn, BLOCK_P // size, 1)
        valid = columns < N // size
        if CENTRED:
            most += valid.to(tl.float32)
            moved = acc - mean
            mean = tl.where(valid[None, :], mean + moved * (1.0 / (turn + 1)), mean)
            spread = tl.where(valid[None, :], spread + moved * (acc - mean), spread)
        else:
            mean += tl.where(valid[None, :], acc, 0.0)
    place = (batch // BATCH_INNER * PARTS + part) * (BATCH_INNER * M) + batch % BATCH_INNER * M
    place += rows
    if CENTRED:
        # a part that begins behind the last position has met none
        share = most / tl.maximum(tl.sum(most, axis=0), 1.0)
        middle = tl.sum(mean * share[None, :], axis=1)
        away = mean - middle[:, None]
        spread += most[None, :] * away * away
        tl.store(squares + place, tl.sum(spread, axis=1), mask=rows < M)
    else:
        middle = tl.sum(mean, axis=1)
    tl.store(found + place, middle, mask=rows < M)
''',
)

SETTLE = (
    "kmem_nhwc_settle",
    '''
@triton.jit
def kmem_nhwc_settle(
    found, squares, means, scales, shifts, weight, bias, running_mean, running_var,
    C: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    POSITIONS: tl.constexpr, PART: tl.constexpr, TOTAL: tl.constexpr, EPS: tl.constexpr,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr,
    RUNNING: tl.constexpr, MOMENTUM: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """Mean, scale and shift of the channels of one set, CHANNELS of C, from ROWS parts of PART
    positions; the last of PARTS of an image may have fewer. A set has TOTAL values.
    """
    pid = tl.program_id(0)
    sets: tl.constexpr = C // CHANNELS
    first = pid // sets * ROWS * C + pid % sets * CHANNELS
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, ROWS * CHANNELS, BLOCK):
        item = start + tl.arange(0, BLOCK)
        inside = item < ROWS * CHANNELS
        count = tl.minimum(POSITIONS - item // CHANNELS % PARTS * PART, PART)
        middle = tl.load(
            found + first + item // CHANNELS * C + item % CHANNELS, mask=inside, other=0.0
        )
        sums += tl.where(inside, middle * (count.to(tl.float32) / TOTAL), 0.0)
    mean = tl.sum(sums, axis=0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, ROWS * CHANNELS, BLOCK):
        item = start + tl.arange(0, BLOCK)
        inside = item < ROWS * CHANNELS
        count = tl.minimum(POSITIONS - item // CHANNELS % PARTS * PART, PART).to(tl.float32)
        place = first + item // CHANNELS * C + item % CHANNELS
        away = tl.load(found + place, mask=inside, other=0.0) - mean
        spread = tl.load(squares + place, mask=inside, other=0.0)
        sums += tl.where(inside, spread + count * away * away, 0.0)
    spread = tl.sum(sums, axis=0)
    root = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(spread, TOTAL * 1.0) + EPS))
    c = tl.arange(0, BLOCK_C)
    channel = pid % sets * CHANNELS + c
    scale = tl.zeros((BLOCK_C,), tl.float32) + root
    shift = tl.zeros((BLOCK_C,), tl.float32)
    if WEIGHTED:
        scale = scale * tl.load(weight + channel, mask=c < CHANNELS, other=0.0).to(tl.float32)
    if BIASED:
        shift += tl.load(bias + channel, mask=c < CHANNELS, other=0.0).to(tl.float32)
    place = pid * CHANNELS + c
    tl.store(means + place, tl.zeros((BLOCK_C,), tl.float32) + mean, mask=c < CHANNELS)
    tl.store(scales + place, scale, mask=c < CHANNELS)
    tl.store(shifts + place, shift, mask=c < CHANNELS)
    if RUNNING:  # a set is one channel
        fresh = tl.div_rn(spread, TOTAL - 1.0)
        old_mean = tl.load(running_mean + pid).to(tl.float32)
        old_var = tl.load(running_var + pid).to(tl.float32)
        new_mean = (1.0 - MOMENTUM) * old_mean + MOMENTUM * mean
        new_var = (1.0 - MOMENTUM) * old_var + MOMENTUM * fresh
        tl.store(running_mean + pid, new_mean.to(running_mean.dtype.element_ty))
        tl.store(running_var + pid, new_var.to(running_var.dtype.element_ty))
''',
)

TOTAL = (
    "kmem_nhwc_total",
    '''
@triton.jit
def kmem_nhwc_total(
    found, out, C: tl.constexpr, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    FACTOR: tl.constexpr, BLOCK: tl.constexpr,
):
    """FACTOR times the sum of CHANNELS channels of an image over its PARTS."""
    pid = tl.program_id(0)
    sets: tl.constexpr = C // CHANNELS
    first = pid // sets * PARTS * C + pid % sets * CHANNELS
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, PARTS * CHANNELS, BLOCK):
        item = start + tl.arange(0, BLOCK)
        sums += tl.load(
            found + first + item // CHANNELS * C + item % CHANNELS,
            mask=item < PARTS * CHANNELS,
            other=0.0,
        )
    tl.store(out + pid, (tl.sum(sums, axis=0) * FACTOR).to(out.dtype.element_ty))
''',
)
