"""Triton text of the chunked scan: one kernel behind running sums, or one for each stage.

Running sums of a are added in fp64 and parted into two fp32 numbers, so that a difference of two is
rounded once; exponentials of differences are made in the tile that they are multiplied with. States
are `state` by `column`. Where SUMS, what chunks begin with is the sum over earlier chunks of
exp(difference of sums) times their states, kept relative to the largest of these weights as an
online softmax keeps it: no exponential in between overflows. And there, as in eager's product with
masked weights, 0 times a state that is not finite is NaN: what chunks before such a state begin
with is NaN too.

Source: Dao, Gu, "Transformers are SSMs", arXiv 2405.21060, section 6 (the chunked form); Milakov,
Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867 (sums relative to a
maximum).
"""

FUSED = (
    "kmem_chunked_fused",
    '''
@triton.jit
def kmem_chunked_fused(
    b, c, x, sums, first, y, last,
    INNER: tl.constexpr, CHUNKS: tl.constexpr, LENGTH: tl.constexpr,
    STATE: tl.constexpr, COLUMNS: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_CHUNK: tl.constexpr, B_PLACE: tl.constexpr,
    B_STATE: tl.constexpr,
    C_OUTER: tl.constexpr, C_INNER: tl.constexpr, C_CHUNK: tl.constexpr, C_PLACE: tl.constexpr,
    C_STATE: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_CHUNK: tl.constexpr, X_PLACE: tl.constexpr,
    X_COLUMN: tl.constexpr,
    FIRST_OUTER: tl.constexpr, FIRST_INNER: tl.constexpr, FIRST_STATE: tl.constexpr,
    FIRST_COLUMN: tl.constexpr,
    Y_OUTER: tl.constexpr, Y_INNER: tl.constexpr, Y_CHUNK: tl.constexpr, Y_PLACE: tl.constexpr,
    Y_COLUMN: tl.constexpr,
    LAST_OUTER: tl.constexpr, LAST_INNER: tl.constexpr, LAST_STATE: tl.constexpr,
    LAST_COLUMN: tl.constexpr,
    SUMS: tl.constexpr, FIRST: tl.constexpr, HAS_Y: tl.constexpr, HAS_LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """BLOCK_P columns of one scan, from its first chunk to its last."""
    blocks: tl.constexpr = (COLUMNS + BLOCK_P - 1) // BLOCK_P
    pid = tl.program_id(0)
    scan = (pid // blocks).to(tl.int64)
    outer = scan // INNER
    inner = scan % INNER
    b += outer * B_OUTER + inner * B_INNER
    c += outer * C_OUTER + inner * C_INNER
    x += outer * X_OUTER + inner * X_INNER
    y += outer * Y_OUTER + inner * Y_INNER
    sums += scan * (CHUNKS * LENGTH)
    states = tl.arange(0, BLOCK_N)
    columns = pid % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    is_state = (states < STATE)[:, None] & (columns < COLUMNS)[None, :]
    held = tl.zeros((BLOCK_N, BLOCK_P), tl.float32)
    if FIRST:
        first += outer * FIRST_OUTER + inner * FIRST_INNER
        at = states[:, None] * FIRST_STATE + columns[None, :] * FIRST_COLUMN
        held = tl.load(first + at, mask=is_state, other=0.0)
    top = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    lost = tl.full((BLOCK_P,), -1, tl.int32)
    for chunk in range(CHUNKS):
        if HAS_Y:
            state = kmem_chunked_state(held, top, total, SUMS, FIRST)
            state = tl.where(is_state, state, 0.0)
            for row in range(0, LENGTH, BLOCK_L):
                kmem_chunked_tile(
                    b, c, x, y, sums, state, row + tl.arange(0, BLOCK_L), states, columns,
                    LENGTH, STATE, COLUMNS, B_PLACE, B_STATE, C_PLACE, C_STATE,
                    X_PLACE, X_COLUMN, Y_PLACE, Y_COLUMN, PRECISION, BLOCK_L,
                )
        fed = kmem_chunked_feed(
            b, x, sums, states, columns,
            LENGTH, STATE, COLUMNS, B_PLACE, B_STATE, X_PLACE, X_COLUMN,
            PRECISION, BLOCK_L, BLOCK_N, BLOCK_P,
        )
        fed = tl.where(is_state, fed, 0.0)
        if SUMS and HAS_Y:
            is_lost = tl.max((fed - fed != 0.0).to(tl.int32), axis=0) > 0
            lost = tl.where(is_lost, chunk, lost)
        end = tl.load(sums + LENGTH - 1)
        held, top, total = kmem_chunked_pass(held, top, total, end, fed, SUMS)
        b += B_CHUNK
        c += C_CHUNK
        x += X_CHUNK
        y += Y_CHUNK
        sums += LENGTH
    if HAS_LAST:
        last += outer * LAST_OUTER + inner * LAST_INNER
        tl.store(
            last + states[:, None] * LAST_STATE + columns[None, :] * LAST_COLUMN,
            kmem_chunked_state(held, top, total, SUMS, FIRST),
            mask=is_state,
        )
    if SUMS and HAS_Y:
        y -= CHUNKS * Y_CHUNK
        is_column = columns < COLUMNS
        for chunk in range(tl.max(lost, axis=0) + 1):
            for place in range(LENGTH):
                tl.store(
                    y + place * Y_PLACE + columns * Y_COLUMN,
                    tl.full((BLOCK_P,), float("nan"), tl.float32),
                    mask=is_column & (lost >= chunk),
                )
            y += Y_CHUNK
''',
)

SUMS = (
    "kmem_chunked_sums",
    '''
@triton.jit
def kmem_chunked_sums(
    a, sums,
    INNER: tl.constexpr, CHUNKS: tl.constexpr, LENGTH: tl.constexpr,
    A_OUTER: tl.constexpr, A_INNER: tl.constexpr, A_CHUNK: tl.constexpr, A_PLACE: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    """Running sums of one chunk in fp64: (scan, chunk, place), dense."""
    pid = tl.program_id(0).to(tl.int64)
    scan = pid // CHUNKS
    a += scan // INNER * A_OUTER + scan % INNER * A_INNER + pid % CHUNKS * A_CHUNK
    places = tl.arange(0, BLOCK_L)
    rates = tl.load(a + places * A_PLACE, mask=places < LENGTH, other=0.0).to(tl.float64)
    tl.store(sums + pid * LENGTH + places, tl.cumsum(rates, 0), mask=places < LENGTH)
''',
)

STATES = (
    "kmem_chunked_states",
    '''
@triton.jit
def kmem_chunked_states(
    b, x, sums, fed,
    INNER: tl.constexpr, CHUNKS: tl.constexpr, LENGTH: tl.constexpr,
    STATE: tl.constexpr, COLUMNS: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_CHUNK: tl.constexpr, B_PLACE: tl.constexpr,
    B_STATE: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_CHUNK: tl.constexpr, X_PLACE: tl.constexpr,
    X_COLUMN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """BLOCK_P columns of what one chunk adds to the state: (scan, chunk, state, column), dense."""
    blocks: tl.constexpr = (COLUMNS + BLOCK_P - 1) // BLOCK_P
    pid = tl.program_id(0)
    place = (pid // blocks).to(tl.int64)
    scan = place // CHUNKS
    chunk = place % CHUNKS
    b += scan // INNER * B_OUTER + scan % INNER * B_INNER + chunk * B_CHUNK
    x += scan // INNER * X_OUTER + scan % INNER * X_INNER + chunk * X_CHUNK
    sums += place * LENGTH
    states = tl.arange(0, BLOCK_N)
    columns = pid % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    found = kmem_chunked_feed(
        b, x, sums, states, columns,
        LENGTH, STATE, COLUMNS, B_PLACE, B_STATE, X_PLACE, X_COLUMN,
        PRECISION, BLOCK_L, BLOCK_N, BLOCK_P,
    )
    tl.store(
        fed + (place * STATE + states[:, None]) * COLUMNS + columns[None, :],
        found,
        mask=(states < STATE)[:, None] & (columns < COLUMNS)[None, :],
    )
''',
)

PASS = (
    "kmem_chunked_pass_on",
    '''
@triton.jit
def kmem_chunked_pass_on(
    fed, sums, first, before, last,
    INNER: tl.constexpr, CHUNKS: tl.constexpr, LENGTH: tl.constexpr,
    STATE: tl.constexpr, COLUMNS: tl.constexpr,
    FIRST_OUTER: tl.constexpr, FIRST_INNER: tl.constexpr, FIRST_STATE: tl.constexpr,
    FIRST_COLUMN: tl.constexpr,
    LAST_OUTER: tl.constexpr, LAST_INNER: tl.constexpr, LAST_STATE: tl.constexpr,
    LAST_COLUMN: tl.constexpr,
    SUMS: tl.constexpr, FIRST: tl.constexpr, HAS_Y: tl.constexpr, HAS_LAST: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """BLOCK_E elements of the states of one scan, from chunk to chunk: what each begins with, as
    `fed` lies, and what is left.
    """
    elements: tl.constexpr = STATE * COLUMNS
    blocks: tl.constexpr = (elements + BLOCK_E - 1) // BLOCK_E
    pid = tl.program_id(0)
    scan = (pid // blocks).to(tl.int64)
    element = pid % blocks * BLOCK_E + tl.arange(0, BLOCK_E)
    live = element < elements
    state = element // COLUMNS
    column = element % COLUMNS
    held = tl.zeros((BLOCK_E,), tl.float32)
    if FIRST:
        first += scan // INNER * FIRST_OUTER + scan % INNER * FIRST_INNER
        at = state * FIRST_STATE + column * FIRST_COLUMN
        held = tl.load(first + at, mask=live, other=0.0)
    top = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    lost = tl.full((BLOCK_E,), -1, tl.int32)
    fed += scan * CHUNKS * elements + element
    before += scan * CHUNKS * elements + element
    sums += scan * CHUNKS * LENGTH + LENGTH - 1
    for chunk in range(CHUNKS):
        if HAS_Y:
            tl.store(
                before + chunk * elements,
                kmem_chunked_state(held, top, total, SUMS, FIRST),
                mask=live,
            )
        added = tl.load(fed + chunk * elements, mask=live, other=0.0)
        end = tl.load(sums + chunk * LENGTH)
        if SUMS and HAS_Y:
            lost = tl.where(added - added != 0.0, chunk, lost)
        held, top, total = kmem_chunked_pass(held, top, total, end, added, SUMS)
    if HAS_LAST:
        last += scan // INNER * LAST_OUTER + scan % INNER * LAST_INNER
        tl.store(
            last + state * LAST_STATE + column * LAST_COLUMN,
            kmem_chunked_state(held, top, total, SUMS, FIRST),
            mask=live,
        )
    if SUMS and HAS_Y:
        for chunk in range(tl.max(lost, axis=0) + 1):
            tl.store(
                before + chunk * elements,
                tl.full((BLOCK_E,), float("nan"), tl.float32),
                mask=live & (lost >= chunk),
            )
''',
)

OUTPUT = (
    "kmem_chunked_output",
    '''
@triton.jit
def kmem_chunked_output(
    b, c, x, sums, before, y,
    INNER: tl.constexpr, CHUNKS: tl.constexpr, LENGTH: tl.constexpr,
    STATE: tl.constexpr, COLUMNS: tl.constexpr,
    B_OUTER: tl.constexpr, B_INNER: tl.constexpr, B_CHUNK: tl.constexpr, B_PLACE: tl.constexpr,
    B_STATE: tl.constexpr,
    C_OUTER: tl.constexpr, C_INNER: tl.constexpr, C_CHUNK: tl.constexpr, C_PLACE: tl.constexpr,
    C_STATE: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_CHUNK: tl.constexpr, X_PLACE: tl.constexpr,
    X_COLUMN: tl.constexpr,
    Y_OUTER: tl.constexpr, Y_INNER: tl.constexpr, Y_CHUNK: tl.constexpr, Y_PLACE: tl.constexpr,
    Y_COLUMN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """BLOCK_L places of one chunk and BLOCK_P columns of y."""
    blocks: tl.constexpr = (COLUMNS + BLOCK_P - 1) // BLOCK_P
    rows: tl.constexpr = (LENGTH + BLOCK_L - 1) // BLOCK_L
    pid = tl.program_id(0)
    place = (pid // (blocks * rows)).to(tl.int64)
    scan = place // CHUNKS
    outer = scan // INNER
    inner = scan % INNER
    chunk = place % CHUNKS
    b += outer * B_OUTER + inner * B_INNER + chunk * B_CHUNK
    c += outer * C_OUTER + inner * C_INNER + chunk * C_CHUNK
    x += outer * X_OUTER + inner * X_INNER + chunk * X_CHUNK
    y += outer * Y_OUTER + inner * Y_INNER + chunk * Y_CHUNK
    sums += place * LENGTH
    states = tl.arange(0, BLOCK_N)
    columns = pid % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    later = pid // blocks % rows * BLOCK_L + tl.arange(0, BLOCK_L)
    state = tl.load(
        before + (place * STATE + states[:, None]) * COLUMNS + columns[None, :],
        mask=(states < STATE)[:, None] & (columns < COLUMNS)[None, :],
        other=0.0,
    )
    kmem_chunked_tile(
        b, c, x, y, sums, state, later, states, columns,
        LENGTH, STATE, COLUMNS, B_PLACE, B_STATE, C_PLACE, C_STATE,
        X_PLACE, X_COLUMN, Y_PLACE, Y_COLUMN, PRECISION, BLOCK_L,
    )
''',
)
