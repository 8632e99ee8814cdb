"""Triton text that says which heads hold a value that is not finite, for masks that only hide it.

A module that writes attention out multiplies what its mask hides by 0: an infinity or a NaN there
makes every row NaN. A kernel that skips blocks of keys does not see it. This pass reads the values
once, and the keys where the mask is added to the scores; programs of a head for which it says so
skip nothing. It takes as long as reading V does: a hundredth of the products at 4,096 keys.
"""

from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .attention import Attention

PASS_ELEMENTS = 8192  # of one program

FLAG = (
    "kmem_attention_flag",
    '''
@triton.jit
def kmem_attention_flag(
    k, v, flags,
    KEYS: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr,
    K_OUTER: tl.constexpr, K_INNER: tl.constexpr, K_ROW: tl.constexpr,
    V_OUTER: tl.constexpr, V_INNER: tl.constexpr, V_ROW: tl.constexpr,
    ADDS: tl.constexpr, FLAGS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_E: tl.constexpr,
):
    """flags[head, FLAGS]: whether a value of these BLOCK_R rows is not finite; if ADDS, a key."""
    pid = tl.program_id(0)
    batch = pid // FLAGS
    outer = (batch // INNER).to(tl.int64)
    inner = (batch % INNER).to(tl.int64)
    rows = pid % FLAGS * BLOCK_R + tl.arange(0, BLOCK_R)
    row = rows.to(tl.int64)[:, None]
    width = tl.arange(0, BLOCK_E)[None, :]
    there = (rows < KEYS)[:, None]
    values = tl.load(
        v + outer * V_OUTER + inner * V_INNER + row * V_ROW + width,
        mask=there & (width < WIDTH),
        other=0.0,
    ).to(tl.float32)
    found = tl.max(tl.max((values * 0.0 != 0.0).to(tl.int32), axis=1), axis=0)
    if ADDS:
        depth = tl.arange(0, BLOCK_D)[None, :]
        keys = tl.load(
            k + outer * K_OUTER + inner * K_INNER + row * K_ROW + depth,
            mask=there & (depth < DEPTH),
            other=0.0,
        ).to(tl.float32)
        found |= tl.max(tl.max((keys * 0.0 != 0.0).to(tl.int32), axis=1), axis=0)
    tl.store(flags + pid, found)
''',
)


def _block_rows(detail: Attention) -> int:
    """Rows of one program."""
    widest = next_power_of_two(max(detail.depth, detail.width))
    return max(1, min(next_power_of_two(detail.keys), PASS_ELEMENTS // widest))


def flag_programs(detail: Attention) -> int:
    """Programs of one head, so that one load of a power of two reads what they say."""
    return next_power_of_two(ceil_div(detail.keys, _block_rows(detail)))


def write_flagging(detail: Attention) -> list[str]:
    """The statements that write `flags`."""
    programs = detail.key_heads * flag_programs(detail)
    strides = (
        f"{name}_OUTER={steps[0]}, {name}_INNER={steps[1]}, {name}_ROW={steps[2]}"
        for name, steps in zip("KV", detail.steps[1:3], strict=True)
    )
    return [
        f"flags = torch.empty({programs}, dtype=torch.int32, device=q.device)",
        write_launch(
            "kmem_attention_flag",
            programs,
            "k, v, flags",
            f"KEYS={detail.keys}, DEPTH={detail.depth}, WIDTH={detail.width}, "
            f"INNER={detail.inner // detail.shared}",
            *strides,
            f"ADDS={detail.band.is_added}, FLAGS={flag_programs(detail)}",
            f"BLOCK_R={_block_rows(detail)}, BLOCK_D={next_power_of_two(detail.depth)}, "
            f"BLOCK_E={next_power_of_two(detail.width)}, num_warps=4",
        ),
    ]
