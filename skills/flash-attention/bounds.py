"""Triton text that looks once at a mask of parameters: which blocks of keys it leaves alone.

A causal mask that a module keeps in a buffer is known at no time before the call, but it is the
same at every call: this launch is made when the module stages its weights, and again when they
change. Blocks of keys that every query of a block sees are then taken without the mask. Those that
none sees are skipped where the mask fills with -inf: what is not finite in them reaches the result
all the same, as `kmem_attention_flag` or, of fp32, `kmem_attention_mend` has it.
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div

from .attention import Attention, AttentionSettings

BOUNDS = (
    "kmem_attention_bounds",
    '''
@triton.jit
def kmem_attention_bounds(
    mask, bounds, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    MASK: tl.constexpr, MASK_ROW: tl.constexpr, SKIPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """bounds[block of queries, 4]: where the first block of keys begins that any of these queries
    sees (0 if not SKIPS), where the first run of blocks that all of them see as they are begins and
    ends, and where the last block ends that any sees (KEYS if not SKIPS).
    """
    block = tl.program_id(0)
    row = tl.minimum(block * BLOCK_M + tl.arange(0, BLOCK_M), QUERIES - 1)
    first = block * 0 + (KEYS if SKIPS else 0)
    last = block * 0 + (0 if SKIPS else KEYS)
    whole = block * 0
    rest = block * 0
    for start in range(0, KEYS, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        inside = (columns < KEYS)[None, :]
        found = tl.load(
            mask + row.to(tl.int64)[:, None] * MASK_ROW + columns[None, :], mask=inside, other=0
        )
        sees = (found == 0) if MASK == "hides" or MASK == "added" else (found != 0)
        any_sees = tl.max(tl.max((sees & inside).to(tl.int32), axis=1), axis=0)
        all_see = tl.min(tl.min((sees & inside).to(tl.int32), axis=1), axis=0)
        if SKIPS:
            first = tl.where(any_sees != 0, tl.minimum(first, start), first)
            last = tl.where(any_sees != 0, tl.minimum(start + BLOCK_N, KEYS), last)
        begins = (all_see != 0) & (rest == 0)
        whole = tl.where(begins, start, whole)
        rest = tl.where(begins | ((all_see != 0) & (rest == start)), start + BLOCK_N, rest)
    tl.store(bounds + block * 4, first)
    tl.store(bounds + block * 4 + 1, whole)
    tl.store(bounds + block * 4 + 2, rest)
    tl.store(bounds + block * 4 + 3, last)
''',
)


def write_bounding(detail: Attention, knobs: AttentionSettings) -> list[str]:
    """The statements that write `bounds` for these blocks."""
    assert detail.mask is not None
    blocks = ceil_div(detail.queries, knobs.block_m)
    return [
        f"bounds = torch.empty({4 * blocks}, dtype=torch.int32, device=mask.device)",
        write_launch(
            "kmem_attention_bounds",
            blocks,
            f"{detail.mask_argument}, bounds, QUERIES={detail.queries}, KEYS={detail.keys}",
            f"MASK={detail.mask.kind!r}, MASK_ROW={detail.mask.steps[2]}, SKIPS={detail.skips}",
            f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, num_warps=4",
        ),
    ]
