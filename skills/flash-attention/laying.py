"""Triton text that lays a mask out whose keys are not dense, before attention reads it.

A bias that is looked up for each pair of places has its heads innermost (T5, Swin): a kernel of one
head would read a sector of memory for each element of it, in every batch again. This pass reads it
once, heads and keys as a tile, and writes it with keys dense. Where parameters alone decide the
mask it is made when the module stages its weights.
"""

from math import prod

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .terms import Mask

MOST_KEYS, MOST_HEADS = 128, 32  # of a tile

LAY = (
    "kmem_attention_lay",
    '''
@triton.jit
def kmem_attention_lay(
    x, laid, INNER: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    X_OUTER: tl.constexpr, X_INNER: tl.constexpr, X_ROW: tl.constexpr, X_KEY: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """(outer, INNER, ROWS, KEYS) as it lies to what is contiguous: some keys of one row, and all of
    its inner places.
    """
    blocks: tl.constexpr = (KEYS + BLOCK_N - 1) // BLOCK_N
    pid = tl.program_id(0)
    row = (pid // blocks % ROWS).to(tl.int64)
    outer = (pid // (blocks * ROWS)).to(tl.int64)
    column = pid % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = column.to(tl.int64)[None, :]
    for head in range(0, INNER, BLOCK_H):
        place = head + tl.arange(0, BLOCK_H)
        inner = place.to(tl.int64)[:, None]
        inside = (place < INNER)[:, None] & (column < KEYS)[None, :]
        at = outer * X_OUTER + inner * X_INNER + row * X_ROW + columns * X_KEY
        to = ((outer * INNER + inner) * ROWS + row) * KEYS + columns
        tl.store(laid + to, tl.load(x + at, mask=inside), mask=inside)
''',
)


def write_laying(name: str, mask: Mask) -> list[str]:
    """The statements that make what is read of a mask that the launcher is given by a name."""
    assert mask.lying is not None
    sizes = mask.lying.sizes
    inner, keys = sizes[1], sizes[3]
    laid = mask.argument(name)
    block = min(MOST_KEYS, next_power_of_two(keys))
    steps = zip(("OUTER", "INNER", "ROW", "KEY"), mask.lying.steps, strict=True)
    return [
        f"{laid} = torch.empty({prod(sizes)}, dtype={name}.dtype, device={name}.device)",
        write_launch(
            "kmem_attention_lay",
            sizes[0] * sizes[2] * ceil_div(keys, block),
            f"{name}, {laid}",
            f"INNER={inner}, ROWS={sizes[2]}, KEYS={keys}",
            ", ".join(f"X_{axis}={step}" for axis, step in steps),
            f"BLOCK_H={min(MOST_HEADS, next_power_of_two(inner))}, BLOCK_N={block}, num_warps=4",
        ),
    ]
