"""Running sums kept short: what accumulate.py says of them, for kernels that are files."""

import triton
import triton.language as tl


@triton.jit
def kmem_add_compensated(total, lost, part):
    """total + part, and what this sum adds too much by rounding, for the next one (Kahan)."""
    part -= lost
    higher = total + part
    lost = (higher - total) - part
    # Beside an infinity or a NaN nothing is known to be lost: the difference would spread as NaN.
    return higher, tl.where(tl.abs(lost) < float("inf"), lost, 0.0)


@triton.jit
def kmem_add_chain(total, part):
    """total + part, as a multiply-add: a mere addition of a product that began at zero the compiler
    folds back into that product's own chain.
    """
    return tl.fma(part, 1.0, total)
