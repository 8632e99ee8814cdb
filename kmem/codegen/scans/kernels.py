"""Running sums, products and extremes along rows, tile by tile.

A tile is (BK rows, BR positions), scanned along axis 1; the layout puts lanes along whichever axis
is dense in memory, so that scans over any dimension share one text. `outer` counts the rows along
all kept axes but the densest, `k` along that; SIZES are the sizes of the kept axes. Totals combine
in a fixed order: results repeat bitwise. Everything computes in fp32. EXTREME is 1 for the largest
so far, -1 for the smallest, which is that of the negated values, and 0 for sums and products.

Ports: BEFORE makes what is scanned from what it loads, AFTER what is stored from what was scanned.
STRIDES has those of each load along the kept axes, and last the store's; PLACES its step along the
scan, where it begins, and the positions that it has: from one, 0 for all, and to one, -1 for all.
"""

import triton
import triton.language as tl

from kmem.codegen.text.sums import kmem_add_compensated


@triton.jit
def kmem_scan_multiply(a, b):
    return a * b


@triton.jit
def kmem_scan_larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def kmem_scan_place(
    pointer,
    outer,
    k,
    r,
    NUMBER: tl.constexpr,
    STRIDES: tl.constexpr,
    PLACES: tl.constexpr,
    SIZES: tl.constexpr,
):
    """Addresses of the positions of a tile; what is scalar first, so that the rest has 32 bits."""
    first = PLACES[NUMBER][1]
    for axis in tl.static_range(len(SIZES) - 2, -1, -1):
        index = outer % SIZES[axis] if axis > 0 else outer
        if STRIDES[NUMBER][axis] != 0:
            first += index * STRIDES[NUMBER][axis]
        outer = outer // SIZES[axis]
    place = pointer + first
    if STRIDES[NUMBER][-1] != 0:
        place += k * STRIDES[NUMBER][-1]
    if PLACES[NUMBER][0] != 0:
        place += r * PLACES[NUMBER][0]
    return place


@triton.jit
def kmem_scan_load(
    pointer,
    at,
    NUMBER: tl.constexpr,
    STRIDES: tl.constexpr,
    PLACES: tl.constexpr,
    SIZES: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_R: tl.constexpr,
):
    """What an operand has where a tile lies: for fewer positions if it broadcasts.

    at: outer, k, whether there are these rows, r, whether there are these positions.
    """
    r, valid = at[3], at[4]
    step: tl.constexpr = PLACES[NUMBER][0]
    low: tl.constexpr = PLACES[NUMBER][2]
    high: tl.constexpr = PLACES[NUMBER][3]
    is_part: tl.constexpr = step != 0 and (low > 0 or high >= 0)
    mask = None
    if is_part or (step != 0 and not EVEN_R):
        mask = valid
    if is_part and low > 0:
        mask = mask & (r >= low)
    if is_part and high >= 0:
        mask = mask & (r < high)
    if STRIDES[NUMBER][-1] != 0 and (is_part or not EVEN_K):
        mask = at[2] if mask is None else at[2] & mask
    place = kmem_scan_place(pointer, at[0], at[1], r, NUMBER, STRIDES, PLACES, SIZES)
    return tl.load(place, mask=mask, eviction_policy="evict_first" if step != 0 else "")


@triton.jit
def kmem_scan_rows(block, KI: tl.constexpr, BK: tl.constexpr, WIDE: tl.constexpr):
    """outer and k (BK, 1) of BK rows."""
    blocks: tl.constexpr = (KI + BK - 1) // BK
    k = block % blocks * BK + tl.arange(0, BK)[:, None]
    outer = (block // blocks).to(tl.int64)
    return outer, k.to(tl.int64) if WIDE else k


@triton.jit
def kmem_scan_tile(start, begin, end, BR: tl.constexpr, REVERSE: tl.constexpr, WIDE: tl.constexpr):
    """Positions of the tile whose turn is at `start`, and whether it has them.

    In reverse the last tile comes first.
    """
    last = begin + (end - 1 - begin) // BR * BR
    r = (last - (start - begin) if REVERSE else start) + tl.arange(0, BR)[None, :]
    valid = r < end
    if WIDE:
        r = r.to(tl.int64)
    return r, valid


@triton.jit
def kmem_scan_total(tile, PRODUCT: tl.constexpr, EXTREME: tl.constexpr):
    """What the positions of each row of a tile come to."""
    if EXTREME != 0:
        total = tl.reduce(tile, 1, kmem_scan_larger, keep_dims=True)
    elif PRODUCT:
        total = tl.reduce(tile, 1, kmem_scan_multiply, keep_dims=True)
    else:
        total = tl.sum(tile, axis=1, keep_dims=True)
    return total


@triton.jit
def kmem_scan_totals(
    inputs,
    totals,
    BEFORE: tl.constexpr,
    STRIDES: tl.constexpr,
    PLACES: tl.constexpr,
    SIZES: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    SPLIT: tl.constexpr,
    SEGMENT: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_R: tl.constexpr,
    WIDE: tl.constexpr,
    PRODUCT: tl.constexpr,
    EXTREME: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """The total of a segment of BK rows, into scratch."""
    neutral: tl.constexpr = 1.0 if PRODUCT else 0.0
    identity: tl.constexpr = float("-inf") if EXTREME != 0 else neutral
    pid = tl.program_id(0)
    part = pid % SPLIT
    outer, k = kmem_scan_rows(pid // SPLIT, KI, BK, WIDE)
    begin = part * SEGMENT
    end = tl.minimum(begin + SEGMENT, N)
    lanes = tl.full((BK, BR), identity, tl.float32)
    lost = tl.zeros((BK, BR), tl.float32)
    for start in range(begin, end, BR):
        r, valid = kmem_scan_tile(start, begin, end, BR, REVERSE, WIDE)
        source = BEFORE(
            inputs, (outer, k, k < KI, r, valid), STRIDES, PLACES, SIZES, EVEN_K, EVEN_R
        )
        if EXTREME < 0:
            source = -source
        source = source if EVEN_R else tl.where(valid, source, identity)
        source = tl.broadcast_to(source, (BK, BR))
        if EXTREME != 0:
            lanes = kmem_scan_larger(lanes, source)
        elif PRODUCT:
            lanes = lanes * source
        else:
            lanes, lost = kmem_add_compensated(lanes, lost, source)
    total = kmem_scan_total(lanes, PRODUCT, EXTREME)
    tl.store(totals + (outer * KI + k) * SPLIT + part, total, mask=k < KI)


@triton.jit
def kmem_scan(
    inputs,
    out,
    totals,
    BEFORE: tl.constexpr,
    AFTER: tl.constexpr,
    STRIDES: tl.constexpr,
    PLACES: tl.constexpr,
    SIZES: tl.constexpr,
    N: tl.constexpr,
    KI: tl.constexpr,
    BK: tl.constexpr,
    BR: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
    SEGMENT: tl.constexpr,
    EVEN_K: tl.constexpr,
    EVEN_R: tl.constexpr,
    WIDE: tl.constexpr,
    PRODUCT: tl.constexpr,
    EXTREME: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """Scan a segment of BK rows, on top of what the segments before it came to, if any did.

    Sums keep what they lose to rounding: as many tiles as a row has are added in one chain.
    """
    neutral: tl.constexpr = 1.0 if PRODUCT else 0.0
    identity: tl.constexpr = float("-inf") if EXTREME != 0 else neutral
    pid = tl.program_id(0)
    part = pid % SPLIT
    outer, k = kmem_scan_rows(pid // SPLIT, KI, BK, WIDE)
    begin = part * SEGMENT
    end = tl.minimum(begin + SEGMENT, N)
    if totals is None:
        carry = tl.full((BK, 1), identity, tl.float32)
    else:
        other = tl.arange(0, SPLIT_TILE)[None, :]
        precedes = (other > part) & (other < SPLIT) if REVERSE else other < part
        ahead = tl.load(
            totals + (outer * KI + k) * SPLIT + other, mask=(k < KI) & precedes, other=identity
        )
        carry = kmem_scan_total(ahead, PRODUCT, EXTREME)
    lost = tl.zeros((BK, 1), tl.float32)
    for start in range(begin, end, BR):
        r, valid = kmem_scan_tile(start, begin, end, BR, REVERSE, WIDE)
        at = (outer, k, k < KI, r, valid)
        source = BEFORE(inputs, at, STRIDES, PLACES, SIZES, EVEN_K, EVEN_R)
        if EXTREME < 0:
            source = -source
        source = source if EVEN_R else tl.where(valid, source, identity)
        source = tl.broadcast_to(source, (BK, BR))
        # what is carried on does not wait for the scan
        if EXTREME != 0:
            scanned = tl.associative_scan(source, 1, kmem_scan_larger, reverse=REVERSE)
            scanned = kmem_scan_larger(scanned, carry)
            carry = kmem_scan_larger(carry, kmem_scan_total(source, PRODUCT, EXTREME))
            if EXTREME < 0:
                scanned = -scanned
        elif PRODUCT:
            scanned = tl.cumprod(source, axis=1, reverse=REVERSE) * carry
            carry = carry * kmem_scan_total(source, PRODUCT, EXTREME)
        else:
            scanned = tl.cumsum(source, axis=1, reverse=REVERSE) + carry
            total = kmem_scan_total(source, PRODUCT, EXTREME)
            carry, lost = kmem_add_compensated(carry, lost, total)
        if AFTER is not None:
            scanned = AFTER(scanned, inputs, at, STRIDES, PLACES, SIZES, EVEN_K, EVEN_R)
        mask = None if EVEN_R else valid
        if not EVEN_K:
            mask = k < KI if mask is None else (k < KI) & mask
        place = kmem_scan_place(out, outer, k, r, len(PLACES) - 1, STRIDES, PLACES, SIZES)
        tl.store(place, scanned.to(out.dtype.element_ty), mask=mask)
