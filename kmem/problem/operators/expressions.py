"""Triton expressions as rows write them, and the jitted helpers that they call.

An expression is a string, or an `Expression` where it calls a helper. So nothing has to search the
text for helpers later: `using(f"stable_exp({x})", STABLE_EXP)`.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Helper:
    """A `@triton.jit` function that expressions call. Its text stands alone."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Expression:
    """A Triton expression with the helpers that it calls."""

    text: str
    helpers: tuple[Helper, ...] = ()


def using(text: str, *helpers: Helper) -> Expression:
    """An expression that calls these helpers."""
    return Expression(text, helpers)


def as_expression(written: str | Expression) -> Expression:
    """What a row wrote, as an expression."""
    return Expression(written) if isinstance(written, str) else written


def variable(name: str) -> str:
    """The kernel variable that holds a graph value."""
    return f"v_{name}"


def write_number(value: float) -> str:
    """A Python number as a floating literal of Triton source."""
    number = float(value)
    is_finite = number == number and number not in (float("inf"), float("-inf"))
    return repr(number) if is_finite else f"float('{number}')"


def mean_of(total: str, count: int) -> str:
    """A sum over a number of elements, by the rounded inverse of that number.

    A quotient rounded to the last bit is some 40 instructions one after the other, which a kernel
    of one microsecond feels. Source: ATen's mean_kernel_cuda multiplies by such a factor, too.
    """
    (factor,) = struct.unpack("f", struct.pack("f", 1.0 / count))
    return f"{total} * {write_number(factor)}"


def inverse_root(text: str) -> str:
    """1 / sqrt of a value, within two units in the last place.

    Source: torch.rsqrt and the norms of ATen on CUDA are the hardware's rsqrt.approx as well.
    """
    return f"tl.rsqrt({text})"


def maximum(x: str, y: str) -> str:
    """The larger of two; NaN if either is, as torch has it."""
    return f"tl.maximum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


def minimum(x: str, y: str) -> str:
    """The smaller of two; NaN if either is, as torch has it."""
    return f"tl.minimum({x}, {y}, propagate_nan=tl.PropagateNan.ALL)"


# tl.exp multiplies by log2(e) first, which costs |x| roundings; here x = n ln 2 + r with ln 2 in
# two parts (ln2_hi has trailing zeros, so n * ln2_hi is exact), and 2^n in two factors so that
# neither overflows. Source: Cody and Waite 1980, ch. 6; constants as in Cephes single/expf.c.
STABLE_EXP = Helper(
    "stable_exp",
    """@triton.jit
def stable_exp(x):
    c = tl.minimum(
        tl.maximum(x, -110.0, propagate_nan=tl.PropagateNan.ALL),
        100.0,
        propagate_nan=tl.PropagateNan.ALL,
    )
    n = tl.floor(c * 1.4426950408889634 + 0.5)
    r = (c - n * 0.693359375) - n * -2.12194440e-4
    half = tl.floor(n * 0.5)
    return tl.exp(r) * tl.exp2(half) * tl.exp2(n - half)
""",
)
# |x| < 0.625: odd polynomial; beyond: 1 - 2 / (exp(2|x|) + 1), which no longer cancels. Source:
# Cephes single/tanhf.c (coefficients and split).
STABLE_TANH = Helper(
    "stable_tanh",
    """@triton.jit
def stable_tanh(x):
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    a = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0.0, -large, large))
""",
)
# |x| < 0.5: Taylor series to x^8, truncation below 1e-8 relative; beyond, exp(x) - 1 loses at most
# two bits, and tl.exp is enough, for its argument is small or negative. Source: Taylor's theorem.
STABLE_EXPM1 = Helper(
    "stable_expm1",
    """@triton.jit
def stable_expm1(x):
    p = x * (1.0 / 40320.0) + (1.0 / 5040.0)
    p = p * x + (1.0 / 720.0)
    p = p * x + (1.0 / 120.0)
    p = p * x + (1.0 / 24.0)
    p = p * x + (1.0 / 6.0)
    p = p * x + 0.5
    return tl.where(tl.abs(x) < 0.5, p * x * x + x, tl.exp(x) - 1.0)
""",
)
# log(u) * t / (u - 1) with u = 1 + t as rounded. Source: Goldberg, "What every computer scientist
# should know ...", 1991, theorem 4.
STABLE_LOG1P = Helper(
    "stable_log1p",
    """@triton.jit
def stable_log1p(t):
    u = 1.0 + t
    d = u - 1.0
    return tl.where(d == 0.0, t, tl.log(u) * (t / tl.where(d == 0.0, 1.0, d)))
""",
)
#: The binary operator of a product over a row, for tl.reduce.
MULTIPLY = Helper(
    "multiply",
    """@triton.jit
def multiply(a, b):
    return a * b
""",
)

#: The order in which a module defines helpers; a plugin's own come after these, by name.
_ORDER = tuple(
    helper.name for helper in (STABLE_EXP, STABLE_TANH, STABLE_EXPM1, STABLE_LOG1P, MULTIPLY)
)


def order_helpers(helpers: Iterable[Helper]) -> tuple[tuple[str, str], ...]:
    """(name, text) of each helper once, in the order in which a module defines them."""

    def place(helper: Helper) -> tuple[int, str]:
        known = helper.name in _ORDER
        return _ORDER.index(helper.name) if known else len(_ORDER), helper.name

    return tuple((helper.name, helper.source) for helper in sorted(set(helpers), key=place))
