"""Several products of one operand as one product, whose columns are those of all of them.

    F.silu(x @ w1) * (x @ w3)       # columns side by side: 2j of w1, 2j + 1 of w3

The second operand of the one product is a copy of both weights, column by column, made by a kernel
and kept where they are parameters. What follows is handed in at the port as after any product, so
that no kernel of a product knows of it. joined_sites.py decides which products are joined.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

#: Elements of a block of the copy, and of its side that is not contiguous.
_BLOCK, _LINES = 4096, 32

JOIN_COLUMNS = (
    "kmem_join_columns",
    '''
@triton.jit
def kmem_join_columns(
    source, out, K: tl.constexpr, N: tl.constexpr, FIRST: tl.constexpr,
    SOURCE_K: tl.constexpr, SOURCE_N: tl.constexpr, OUT_K: tl.constexpr, OUT_N: tl.constexpr,
    OUT_FIRST: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Copy N columns of an operand, from FIRST on, to where the joined product reads them."""
    tiles_k: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    steps = tl.program_id(0) % tiles_k * BLOCK_K + tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) // tiles_k * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (steps < K)[:, None] & (columns < N)[None, :]
    wide_steps = steps.to(tl.int64)[:, None]
    wide_columns = columns.to(tl.int64)[None, :]
    values = tl.load(
        source + FIRST + wide_steps * SOURCE_K + wide_columns * SOURCE_N, mask=inside, other=0.0
    )
    tl.store(out + OUT_FIRST + wide_steps * OUT_K + wide_columns * OUT_N, values, mask=inside)
''',
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of an operand that a joined product takes.

    `operand` is the place of the operand among those that are joined, `first` its element of the
    first column; steps are in elements.
    """

    operand: int
    first: int
    count: int
    k_step: int
    n_step: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Which columns are joined, and how: in turns, or one after the other."""

    columns: tuple[Columns, ...]
    in_turns: bool

    @property
    def operands(self) -> int:
        """How many operands are joined; one may give several ranges of columns."""
        return 1 + max(each.operand for each in self.columns)

    @property
    def count(self) -> int:
        """Columns of all."""
        return sum(each.count for each in self.columns)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a launcher calls the operands."""
        return tuple(f"b{place}" for place in range(self.operands))

    def steps(self, k: int) -> tuple[int, int]:
        """Of the joined operand along K and its columns: contiguous as the first one is."""
        return (1, k) if self.columns[0].k_step == 1 else (self.count, 1)

    def write(self, k: int, dtype: str) -> list[str]:
        """The statements that make the joined operand `b`."""
        step_k, step_n = self.steps(k)
        made = [write_call("b = torch.empty", f"{k * self.count}, dtype={dtype}, device=a.device")]
        first = 0
        for place, each in enumerate(self.columns):
            lines = min(_LINES, next_power_of_two(k if step_n == 1 else each.count))
            along = min(_BLOCK // lines, next_power_of_two(each.count if step_n == 1 else k))
            block_k, block_n = (lines, along) if step_n == 1 else (along, lines)
            turn = len(self.columns) if self.in_turns else 1
            start = place if self.in_turns else first
            made.append(
                write_launch(
                    JOIN_COLUMNS[0],
                    ceil_div(k, block_k) * ceil_div(each.count, block_n),
                    f"b{each.operand}, b, K={k}, N={each.count}, FIRST={each.first}",
                    f"SOURCE_K={each.k_step}, SOURCE_N={each.n_step}",
                    f"OUT_K={step_k}, OUT_N={turn * step_n}, OUT_FIRST={start * step_n}",
                    f"BLOCK_K={block_k}, BLOCK_N={block_n}, num_warps=4",
                )
            )
            first += each.count
        return made


def joined_kernels(joined: Joined | None) -> Sequence[tuple[str, str]]:
    """What a product launches before it multiplies."""
    return () if joined is None else (JOIN_COLUMNS,)
