"""The Triton kernel that keeps the special-function unit busy.

It has a file of its own because triton.jit reads functions from files.
"""

import triton
import triton.language as tl


@triton.jit
def exponentials(result, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """ROUNDS dependent exp2 per element of `result`: (programs * BLOCK,) float32.

    Many warps hide the chain's latency.
    """
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = offsets.to(tl.float32) * 1e-9
    for _ in range(ROUNDS):
        # Negated, the chain stays between 0 and 1 and nothing can be folded away.
        values = tl.exp2(-values)
    tl.store(result + offsets, values)
