"""Triton text around a vendor's convolution: what is staged for it, and what follows it.

`kmem_nhwc_stage` writes an image channels-last in half precision, scaled by a power of two that
suits values near one, and leaves the largest magnitude of each tile; `kmem_nhwc_restage` reads
these, and stages an image again, by a scale of its own, where the first does not suit it. So an
image is read once. `kmem_nhwc_weights` writes a filter as the library wants it, scaled by output
channel. `kmem_nhwc_finish` reads the library's result channels-last, takes the scales back, does
what follows element by element, and writes the result as the module returns it.

The first and the last may go through their tiles BACKWARD: the library then begins with what was
staged last, and its last result is read first, while both are still in L2.

Between two convolutions of a chain `kmem_nhwc_pass` is both: it reads what the library made of the
first, and stages what follows that for the second.
"""

COLUMNS = (
    "kmem_nhwc_columns",
    '''
@triton.jit
def kmem_nhwc_columns(tile, BLOCK_P: tl.constexpr, SIZE: tl.constexpr):
    """The positions of a tile, numbered so that those of one window of SIZE lie one after the
    other; the tile has the first of all its windows first, then all second ones, and so on.

    Threads along channels have the last positions of a tile in registers: so those of a window.
    """
    place = tl.arange(0, BLOCK_P)
    if SIZE > 1:
        place = place % (BLOCK_P // SIZE) * SIZE + place // (BLOCK_P // SIZE)
    return tile * BLOCK_P + place
''',
)

STAGE_TILE = (
    "kmem_nhwc_stage_tile",
    '''
@triton.jit
def kmem_nhwc_stage_tile(
    x, staged, image, tile, scale,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    X_IMAGE: tl.constexpr, X_C: tl.constexpr, X_P: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One tile of an image, M channels a group and N positions, to (positions, groups, MP), zero
    above M; the bits of the largest finite magnitude before scaling.
    """
    column_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    row_blocks: tl.constexpr = (MP + BLOCK_C - 1) // BLOCK_C
    group = tile // (column_blocks * row_blocks)
    batch = image * BATCH_INNER + group
    columns = tile % column_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    rows = tile // column_blocks % row_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    source = x + image.to(tl.int64) * X_IMAGE + group * (M * X_C)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    place = rows[:, None] * X_C + columns[None, :] * X_P
    acc = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    if AFTER is not None:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    acc = tl.where(inside, acc, 0.0)
    bits = kmem_magnitude_bits(acc)
    most = tl.max(tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1), axis=0)
    target = staged + image.to(tl.int64) * (N * BATCH_INNER * MP) + group * MP
    kept = (columns[:, None] < N) & (rows[None, :] < MP)
    values = tl.trans((acc * scale).to(staged.dtype.element_ty))
    tl.store(target + columns[:, None] * (BATCH_INNER * MP) + rows[None, :], values, mask=kept)
    return most
''',
)

PASS_TILE = (
    "kmem_nhwc_pass_tile",
    '''
@triton.jit
def kmem_nhwc_pass_tile(
    y, more, y_exponents, w_exponents, staged, image, tile, scale,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    YN: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr, SCALED: tl.constexpr,
    STAGED_MP: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One tile of what the library made of one group and of what follows, to (positions,
    STAGED_MP), zero above M; the bits of the largest finite magnitude before scaling.
    """
    size: tl.constexpr = WD * WH * WW
    stored: tl.constexpr = N // size
    column_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    batch = image
    columns = kmem_nhwc_columns(tile % column_blocks, BLOCK_P, size)
    rows = tile // column_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = kmem_nhwc_read(
        y, more, y_exponents, w_exponents, batch, rows, columns,
        MP, N, BATCH_INNER, YN, YH, YW, OH, OW, SD, SH, SW, PD, PH, PW, RD, RH, RW,
        WD, WH, WW, SCALED, False,
    )
    if AFTER is not None:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    if size > 1:
        columns = kmem_nhwc_columns(tile % column_blocks, BLOCK_P // size, 1)
    acc = tl.where((rows[:, None] < M) & (columns[None, :] < stored), acc, 0.0)
    bits = kmem_magnitude_bits(acc)
    most = tl.max(tl.max(tl.where(bits < 0x7F800000, bits, 0), axis=1), axis=0)
    target = staged + image.to(tl.int64) * (stored * STAGED_MP)
    kept = (columns[:, None] < stored) & (rows[None, :] < STAGED_MP)
    values = tl.trans((acc * scale).to(staged.dtype.element_ty))
    tl.store(target + columns[:, None] * STAGED_MP + rows[None, :], values, mask=kept)
    return most
''',
)


def _staging(
    name: str, pointers: str, port: str, sizes: str
) -> tuple[tuple[str, str], tuple[str, str]]:
    """The kernels that stage and stage again the tiles of a source.

    Args:
        name: what their names begin with; the function of a tile ends in _tile.
        pointers: those of the source, as text.
        port: the parameters of the port.
        sizes: the constants of the function of a tile.
    """
    handed = ", ".join(f"{each}: tl.constexpr" for each in port.split(", "))
    names = sizes.split(", ")
    lines = [names[place : place + 3] for place in range(0, len(names), 3)]
    arguments = ",\n        ".join(", ".join(line) for line in lines)
    declared = ",\n    ".join(", ".join(f"{each}: tl.constexpr" for each in line) for line in lines)
    stage = f'''
@triton.jit
def kmem_nhwc_{name}(
    {pointers}, largest, staged,
    extra, {handed},
    {declared},
    TILES: tl.constexpr, SCALE: tl.constexpr, BACKWARD: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """One of TILES tiles of an image, scaled: largest[image, tile]."""
    pid = tl.program_id(0)
    if BACKWARD:
        pid = tl.num_programs(0) - 1 - pid
    most = kmem_nhwc_{name}_tile(
        {pointers}, staged, pid // TILES, pid % TILES, SCALE,
        extra, {port},
        {arguments}, BLOCK_C, BLOCK_P,
    )
    if SCALED:
        tl.store(largest + pid, most)
'''
    again = f'''
@triton.jit
def kmem_nhwc_re{name}(
    {pointers}, largest, exponents, staged,
    extra, {handed},
    {declared},
    TILES: tl.constexpr, PARTS: tl.constexpr, GUESS: tl.constexpr, SLACK: tl.constexpr,
    TOP: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """Find an image's exponent, and stage it again where 2**GUESS does not fit it.

    The largest magnitude shall lie below 2**(TOP - 126), by no more than SLACK + 1 binades.
    """
    pid = tl.program_id(0)
    image = pid // PARTS
    part = pid % PARTS
    most = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, TILES, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        found = tl.load(largest + image * TILES + tile, mask=tile < TILES, other=0)
        most = tl.maximum(most, found)
    bits = tl.max(most, axis=0)
    exponent = tl.minimum(TOP - (bits >> 23), 126)
    fits = (bits == 0) | ((exponent >= GUESS) & (exponent <= GUESS + SLACK))
    exponent = tl.where(fits, GUESS, exponent)
    if part == 0:
        tl.store(exponents + image, exponent)
    # a loop of no steps where the image fits
    for tile in range(part, tl.where(fits, 0, TILES), PARTS):
        kmem_nhwc_{name}_tile(
            {pointers}, staged, image, tile, kmem_power_of_two(exponent),
            extra, {port},
            {arguments}, BLOCK_C, BLOCK_P,
        )
'''
    return (f"kmem_nhwc_{name}", stage), (f"kmem_nhwc_re{name}", again)


STAGE, RESTAGE = _staging(
    "stage",
    "x",
    "AFTER, STEPS",
    "M, MP, N, BATCH_INNER, X_IMAGE, X_C, X_P, SCALED",
)
PASS, REPASS = _staging(
    "pass",
    "y, more, y_exponents, w_exponents",
    "AFTER, STEPS",
    "M, MP, N, BATCH_INNER, YN, YH, YW, OH, OW, SD, SH, SW, PD, PH, PW, RD, RH, RW, "
    "WD, WH, WW, SCALED, STAGED_MP",
)

WEIGHTS = (
    "kmem_nhwc_weights",
    '''
@triton.jit
def kmem_nhwc_weights(
    w, exponents, packed,
    C: tl.constexpr, CP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, TAPS: tl.constexpr,
    TRANSPOSED: tl.constexpr, SCALED: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):
    """(groups * M, C, TAPS) to (groups * MP, TAPS, CP), zero above M and C; a row is scaled so that
    its magnitudes add up to less than 2**(TOP - 126).

    TRANSPOSED weights are (groups * C, M, TAPS) and become (groups * CP, TAPS, MP).
    """
    row = tl.program_id(0)
    group = row // MP
    m = row % MP
    end = tl.where(m < M, C, 0)  # a row above M has no channels
    c_step: tl.constexpr = M * TAPS if TRANSPOSED else TAPS
    m_step: tl.constexpr = TAPS if TRANSPOSED else C * TAPS
    w += group.to(tl.int64) * (M * C * TAPS) + m * m_step
    scale = 1.0
    if SCALED:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, C * TAPS, BLOCK):
            k = start + tl.arange(0, BLOCK)
            place = k // TAPS * c_step + k % TAPS
            size = tl.abs(tl.load(w + place, mask=k < end * TAPS, other=0.0))
            total += tl.where(size < float("inf"), size, 0.0)
        # a little more than they are, for values and sums are rounded
        bits = kmem_magnitude_bits(tl.sum(total, axis=0) * 1.00390625)
        exponent = tl.minimum(TOP - (bits >> 23), 126)
        scale = kmem_power_of_two(exponent)
        tl.store(exponents + row, exponent)
    for start in range(0, CP * TAPS, BLOCK):
        k = start + tl.arange(0, BLOCK)
        c = k % CP
        tap = k // CP
        values = tl.load(w + c * c_step + tap, mask=(c < end) & (tap < TAPS), other=0.0)
        values = values.to(tl.float32) * scale
        if SCALED and packed.dtype.element_ty == tl.float16:
            # none that is not zero becomes zero: it may meet an infinity
            least = tl.where(values < 0.0, -5.9604644775390625e-08, 5.9604644775390625e-08)
            is_lost = (values != 0.0) & (tl.abs(values) < 5.9604644775390625e-08)
            values = tl.where(is_lost, least, values)
        if TRANSPOSED:
            place = ((group * CP + c) * TAPS + tap) * MP + m
        else:
            place = (row * TAPS + tap) * CP + c
        tl.store(packed + place, values.to(packed.dtype.element_ty), mask=tap < TAPS)
''',
)

READ = (
    "kmem_nhwc_read",
    '''
@triton.jit
def kmem_nhwc_read(
    y, more, exponents, w_exponents, batch, rows, columns,
    MP: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    YN: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr,
    SCALED: tl.constexpr, STREAMS: tl.constexpr,
):
    """Channels by positions of what the library made, its scales taken back.

    Of OH x OW positions a plane the first N in windows of WD x WH x WW are numbered so that those
    of one window lie one after the other. The library made YN places, YH x YW a plane, and of each
    the phases of strides S and paddings P, MP channels a phase and group; where R phases of an axis
    have a tap more than the others it made several parts (see phases.py).
    """
    policy: tl.constexpr = "evict_first" if STREAMS else ""
    image = batch // BATCH_INNER
    group = batch % BATCH_INNER
    at = columns
    if WD * WH * WW * SD * SH * SW > 1 or PD + PH + PW > 0:
        window = columns // (WD * WH * WW)
        d = window // (OH // WH * (OW // WW)) * WD + columns // (WH * WW) % WD
        h = window // (OW // WW) % (OH // WH) * WH + columns // WW % WH
        w = window % (OW // WW) * WW + columns % WW + PW
        at = ((d + PD) // SD * YH + (h + PH) // SH) * YW + w // SW
        at = ((at * SD + (d + PD) % SD) * SH + (h + PH) % SH) * SW + w % SW
    if RD + RH + RW > 0:
        found = kmem_nhwc_place(
            y, more, image, d + PD, h + PH, w, MP, YN, YH, YW, SD, SH, SW, RD, RH, RW
        )
        source = found[:, None] + rows[None, :]
    else:
        start = y + image.to(tl.int64) * (YN * SD * SH * SW * BATCH_INNER * MP) + group * MP
        source = start + (at[:, None] * (BATCH_INNER * MP) + rows[None, :])
    kept = (columns[:, None] < N) & (rows[None, :] < MP)
    loaded = tl.load(source, mask=kept, other=0.0, eviction_policy=policy)
    acc = tl.trans(loaded).to(tl.float32)
    if SCALED:
        # in two steps of normal factors: neither over- nor underflows before the result does
        of_rows = tl.load(w_exponents + group * MP + rows, mask=rows < MP, other=0)
        exponent = -tl.load(exponents + image) - of_rows
        half = exponent >> 1
        acc *= kmem_power_of_two(half)[:, None]
        acc *= kmem_power_of_two(exponent - half)[:, None]
    return acc
''',
)

FINISH = (
    "kmem_nhwc_finish",
    '''
@triton.jit
def kmem_nhwc_finish(
    y, more, exponents, w_exponents, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, MP: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    YN: tl.constexpr, YH: tl.constexpr, YW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    WD: tl.constexpr, WH: tl.constexpr, WW: tl.constexpr,
    OUT_IMAGE: tl.constexpr, OUT_C: tl.constexpr, OUT_P: tl.constexpr, SCALED: tl.constexpr,
    BACKWARD: tl.constexpr, STREAMS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """(images, positions, groups, MP) to the module's own layout, M channels a group."""
    modifier: tl.constexpr = ".cs" if STREAMS else ""
    size: tl.constexpr = WD * WH * WW
    row_blocks: tl.constexpr = (M + BLOCK_C - 1) // BLOCK_C
    column_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    pid = tl.program_id(0)
    if BACKWARD:
        pid = tl.num_programs(0) - 1 - pid
    rows = pid % row_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    tile = pid // row_blocks % column_blocks
    columns = kmem_nhwc_columns(tile, BLOCK_P, size)
    batch = pid // (row_blocks * column_blocks)
    acc = kmem_nhwc_read(
        y, more, exponents, w_exponents, batch, rows, columns,
        MP, N, BATCH_INNER, YN, YH, YW, OH, OW, SD, SH, SW, PD, PH, PW, RD, RH, RW,
        WD, WH, WW, SCALED, STREAMS,
    )
    if AFTER is not None:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    if PLACE is not None:
        rows, columns = PLACE(rows, columns, N)
    if size > 1:
        columns = kmem_nhwc_columns(tile, BLOCK_P // size, 1)
    image = batch // BATCH_INNER
    target = out + image.to(tl.int64) * OUT_IMAGE + batch % BATCH_INNER * (M * OUT_C)
    tl.store(
        target + rows[:, None] * OUT_C + columns[None, :] * OUT_P,
        acc.to(out.dtype.element_ty),
        mask=(rows[:, None] < M) & (columns[None, :] < N // size),
        cache_modifier=modifier,
    )
''',
)
