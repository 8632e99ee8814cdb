"""Device functions for numbers in parts of a lower precision, as Triton text.

A tensor core multiplies fp16 or TF32. fp32 goes there as one part, rounded, or as two, whose
products add up to what fp32 gives: fp16 parts of a number scaled by a power of two (SCALES,
STORE_HALVES), or TF32 parts (STORE_PARTS; DOT_IN_PARTS cuts them on their way).
"""

SCALES = (
    "kmem_scales",
    '''
@triton.jit
def kmem_magnitude_bits(x):
    """|x| as an integer: ordered as magnitudes are, infinity and NaN (0x7f800000 and more) above
    all.
    """
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def kmem_exponent(largest_bits):
    """s such that largest * 2**s lies in [2**14, 2**15); capped so that 2**s and 2**-s are both
    normal.
    """
    return tl.minimum(141 - (largest_bits >> 23), 126)


@triton.jit
def kmem_power_of_two(exponent):
    """2**exponent for -126 <= exponent <= 127, by its bits."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def kmem_unscale(value, exponent_a, exponent_b):
    """value * 2**-(s_a + s_b) in two steps of normal factors: neither over- nor underflows before
    the result does.
    """
    half_a = (-exponent_a) >> 1
    half_b = (-exponent_b) >> 1
    first = kmem_power_of_two(half_a)[:, None] * kmem_power_of_two(half_b)[None, :]
    second = (
        kmem_power_of_two(-exponent_a - half_a)[:, None]
        * kmem_power_of_two(-exponent_b - half_b)[None, :]
    )
    return value * first * second
''',
)

STORE_PARTS = (
    "kmem_store_parts",
    '''
@triton.jit
def kmem_round_tf32(value):
    """Round fp32 to the nearest TF32, as cuDNN does; tl.dot would cut the low 13 bits off. NaN
    stays NaN whatever its payload.
    """
    rounded = ((value.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(value == value, rounded, value)


@triton.jit
def kmem_store_parts(where, value, mask, ROUND: tl.constexpr, LOW: tl.constexpr):
    """Store fp32 rounded to TF32, and if LOW > 0 the rest, rounded too, LOW elements further:
    together 22 bits of the value.

    A value that is not finite goes into the rest alone: it then meets one product instead of two,
    which might cancel to NaN.
    """
    if ROUND and LOW > 0:
        high = kmem_round_tf32(value)
        rest = value - high
        finite = rest - rest == 0.0
        tl.store(where, tl.where(finite, high, 0.0), mask=mask)
        tl.store(where + LOW, tl.where(finite, kmem_round_tf32(rest), value), mask=mask)
    elif ROUND:
        tl.store(where, kmem_round_tf32(value), mask=mask)
    else:
        tl.store(where, value, mask=mask)
''',
)

STORE_HALVES = (
    "kmem_store_halves",
    '''
@triton.jit
def kmem_store_halves(high, low, place, values, mask, TERMS: tl.constexpr):
    """Store scaled fp32 as fp16 and, for three terms, what that leaves times 2048.

    A value that is not finite goes into the second part alone: it then meets one product instead of
    two, which might cancel to NaN.
    """
    top = values.to(high.dtype.element_ty)
    if TERMS == 3:
        rest = (values - top.to(tl.float32)) * 2048.0
        finite = rest == rest
        tl.store(high + place, tl.where(finite, top, 0.0).to(high.dtype.element_ty), mask=mask)
        tl.store(low + place, tl.where(finite, rest, values).to(high.dtype.element_ty), mask=mask)
    else:
        tl.store(high + place, top, mask=mask)
''',
)

DOT_IN_PARTS = (
    "kmem_dot_in_parts",
    '''
@triton.jit
def kmem_cut_tf32(value):
    """What TF32 holds of fp32, and what that leaves times 1024.

    So much larger what is left of a denormal is none: the tensor core would drop it.
    """
    high = (value.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return high, (value - high) * 1024.0


@triton.jit
def kmem_dot_in_parts(a, b):
    """a @ b of fp32 in three products of TF32 parts: `input_precision="tf32x3"` that holds for
    denormals, too.
    """
    high_a, low_a = kmem_cut_tf32(a)
    high_b, low_b = kmem_cut_tf32(b)
    low = tl.dot(low_a, high_b, input_precision="tf32")
    low = tl.dot(high_a, low_b, low, input_precision="tf32")
    # beside an infinity nothing is left, and its part is NaN: the last product says what it gives
    low = tl.where(low == low, low * 0.0009765625, 0.0)
    return tl.dot(high_a, high_b, low, input_precision="tf32")
''',
)
