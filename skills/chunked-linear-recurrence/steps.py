"""Triton text of what the kernels of the chunked scan (kernels.py) do step by step."""

HELPERS = (
    "kmem_chunked_helpers",
    '''
@triton.jit
def kmem_chunked_product(x, y, PRECISION: tl.constexpr):
    """x y; in TF32 rounded to the nearest, which tl.dot would cut off."""
    if PRECISION == "tf32":
        x = kmem_round_tf32(x)
        y = kmem_round_tf32(y)
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def kmem_chunked_decay(exponent):
    """exp of a number in fp64, which fp32 would round to parts of a millionth."""
    high = exponent.to(tl.float32)
    low = (exponent - high.to(tl.float64)).to(tl.float32)
    return stable_exp(high) * (1.0 + tl.where(tl.abs(high) < float("inf"), low, 0.0))


@triton.jit
def kmem_chunked_between(later, earlier, rows, columns, LENGTH: tl.constexpr):
    """exp(later - earlier) of running sums in fp64, 0 above the diagonal.

    In fp32 with what each step loses: a tile of differences in fp64 would take twice the registers.
    Source: Knuth, The Art of Computer Programming 2, 4.2.2, theorem B.
    """
    high_l = later.to(tl.float32)
    high_e = earlier.to(tl.float32)
    low_l = (later - high_l.to(tl.float64)).to(tl.float32)
    low_e = (earlier - high_e.to(tl.float64)).to(tl.float32)
    difference = high_l[:, None] - high_e[None, :]
    taken = difference - high_l[:, None]
    lost = (high_l[:, None] - (difference - taken)) - (high_e[None, :] + taken)
    lost += low_l[:, None] - low_e[None, :]
    lost = tl.where(tl.abs(lost) < 1.0, lost, 0.0)  # nothing is lost of what is not finite
    seen = (columns[None, :] <= rows[:, None]) & (columns < LENGTH)[None, :]
    return stable_exp(tl.where(seen, difference, float("-inf"))) * (1.0 + lost)


@triton.jit
def kmem_chunked_pass(held, top, total, last, fed, SUMS: tl.constexpr):
    """What is held, its largest weight and the sum of all chunks, one chunk later."""
    if SUMS:
        total += last
        higher = tl.maximum(top, -total)
        kept = kmem_chunked_decay(top - higher)
        held = held * kept + fed * kmem_chunked_decay(-total - higher)
        return held, higher, total
    return held * kmem_chunked_decay(last) + fed, top, total


@triton.jit
def kmem_chunked_state(held, top, total, SUMS: tl.constexpr, FIRST: tl.constexpr):
    """The state that is held.

    Zeros that a scan begins with are a state too: where their weight overflows, all is NaN.
    """
    if SUMS:
        held = held * kmem_chunked_decay(total + top) + (total - total).to(tl.float32)
        if not FIRST:
            held += tl.exp(total.to(tl.float32)) * 0.0
    return held


@triton.jit
def kmem_chunked_feed(
    b, x, sums, states, columns,
    LENGTH: tl.constexpr, STATE: tl.constexpr, COLUMNS: tl.constexpr,
    B_PLACE: tl.constexpr, B_STATE: tl.constexpr, X_PLACE: tl.constexpr, X_COLUMN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """What a chunk adds to the state."""
    end = tl.load(sums + LENGTH - 1)
    fed = tl.zeros((BLOCK_N, BLOCK_P), tl.float32)
    for start in range(0, LENGTH, BLOCK_L):
        places = start + tl.arange(0, BLOCK_L)
        live = places < LENGTH
        keys = tl.load(
            b + states[:, None] * B_STATE + places[None, :] * B_PLACE,
            mask=(states < STATE)[:, None] & live[None, :],
            other=0.0,
        )
        values = tl.load(
            x + places[:, None] * X_PLACE + columns[None, :] * X_COLUMN,
            mask=live[:, None] & (columns < COLUMNS)[None, :],
            other=0.0,
        )
        own = tl.load(sums + places, mask=live, other=0.0)
        fading = tl.where(live, kmem_chunked_decay(end - own), 0.0)
        fed += kmem_chunked_product(keys * fading[None, :], values, PRECISION)
    return fed


@triton.jit
def kmem_chunked_tile(
    b, c, x, y, sums, state, later, states, columns,
    LENGTH: tl.constexpr, STATE: tl.constexpr, COLUMNS: tl.constexpr,
    B_PLACE: tl.constexpr, B_STATE: tl.constexpr, C_PLACE: tl.constexpr, C_STATE: tl.constexpr,
    X_PLACE: tl.constexpr, X_COLUMN: tl.constexpr, Y_PLACE: tl.constexpr, Y_COLUMN: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_L: tl.constexpr,
):
    """Some places of a chunk and some columns of y, from the state that the chunk begins with.

    Places above the diagonal are multiplied too: 0 times an infinity is NaN in eager as well.
    """
    inside = (columns < COLUMNS)[None, :]
    queries = tl.load(
        c + later[:, None] * C_PLACE + states[None, :] * C_STATE,
        mask=(later < LENGTH)[:, None] & (states < STATE)[None, :],
        other=0.0,
    )
    own = tl.load(sums + later, mask=later < LENGTH, other=0.0)
    found = kmem_chunked_product(queries, state, PRECISION) * kmem_chunked_decay(own)[:, None]
    for start in range(0, LENGTH, BLOCK_L):
        places = start + tl.arange(0, BLOCK_L)
        live = places < LENGTH
        keys = tl.load(
            b + states[:, None] * B_STATE + places[None, :] * B_PLACE,
            mask=(states < STATE)[:, None] & live[None, :],
            other=0.0,
        )
        values = tl.load(
            x + places[:, None] * X_PLACE + columns[None, :] * X_COLUMN,
            mask=live[:, None] & inside,
            other=0.0,
        )
        earlier = tl.load(sums + places, mask=live, other=0.0)
        weights = kmem_chunked_product(queries, keys, PRECISION)
        weights *= kmem_chunked_between(own, earlier, later, places, LENGTH)
        if LENGTH % BLOCK_L != 0:  # beyond the chunk 0 may have met an infinity
            weights = tl.where(live[None, :], weights, 0.0)
        found += kmem_chunked_product(weights, values, PRECISION)
    tl.store(
        y + later[:, None] * Y_PLACE + columns[None, :] * Y_COLUMN,
        found,
        mask=(later < LENGTH)[:, None] & inside,
    )
''',
)
