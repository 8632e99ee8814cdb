"""Several products of one operand as one product, whose columns are those of all of them.

    F.silu(x @ w1) * (x @ w3)       # columns in turns: 2j of w1, 2j + 1 of w3
    x @ wq, x @ wk, x @ wv          # columns one after the other, and three results

The second operand of the one product is a copy of all weights, column by column, made by a kernel
and kept where they are parameters. Where two of them are inputs, whose copy every call would make,
a kernel may read both where they lie (`in_place`). What follows is handed in at the port as after
any product, so that no kernel that multiplies knows of it; where there are several results, another
function of the same name stores a tile, and what calls it is named apart. joined_sites.py and
shared_sites.py decide which products are joined.
"""

import re
from dataclasses import dataclass, replace

from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission
from kmem.records import TensorSpec

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


_STORE_SHARES = '''
@triton.jit
def kmem_store_tile(
    out, acc, batch, split, rows, columns,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
    BATCH: tl.constexpr, BATCH_INNER: tl.constexpr, SPLITS: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Write a tile of sums: into one of several results after AFTER, or, for one of several splits
    of K, as it is into scratch. OUT_N: of each result its first column, and how many it has.
    """
    if SPLITS > 1:
        place = out + (split.to(tl.int64) * BATCH + batch) * (M * N)
        offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
        tl.store(place + offsets, acc, mask=(rows[:, None] < M) & (columns[None, :] < N))
    else:
        acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
        first = tl.min(columns, 0)
        outer = (batch // BATCH_INNER).to(tl.int64)
        inner = (batch % BATCH_INNER).to(tl.int64)
        place = out[0] + outer * OUT_OUTER[0] + inner * OUT_INNER[0]
        row = tl.zeros((), tl.int32) + OUT_M[0]
        start = tl.zeros((), tl.int32)
        count = tl.zeros((), tl.int32) + OUT_N[0][1]
'''
_NEXT_SHARE = """\
        if first >= OUT_N[{0}][0]:
            place = out[{0}] + outer * OUT_OUTER[{0}] + inner * OUT_INNER[{0}]
            row = tl.zeros((), tl.int32) + OUT_M[{0}]
            start = tl.zeros((), tl.int32) + OUT_N[{0}][0]
            count = tl.zeros((), tl.int32) + OUT_N[{0}][1]
"""
_LAST_LINES = """\
        own = columns - start
        tl.store(
            place + rows.to(tl.int64)[:, None] * row + own[None, :],
            acc.to(out[0].dtype.element_ty),
            mask=(rows < M)[:, None] & (own < count)[None, :],
        )
"""


@dataclass(frozen=True, slots=True)
class Share:
    """One of several results: its columns, and its steps along both batch axes and m.

    Neighbouring columns of a result are neighbours in memory.
    """

    first: int
    count: int
    spec: TensorSpec
    steps: tuple[int, int, int]


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
    """Which columns are joined, and how: in turns, or one after the other.

    With `shares` there are several results, whose first columns are multiples of `grain`: a tile as
    wide belongs to one of them. With `in_place` no copy is made.
    """

    columns: tuple[Columns, ...]
    in_turns: bool
    shares: tuple[Share, ...] = ()
    grain: int = 1
    in_place: bool = False

    @property
    def operands(self) -> int:
        """How many operands are joined; one may give several ranges of columns."""
        return 1 + max(each.operand for each in self.columns)

    @property
    def count(self) -> int:
        """Columns of all, those between shares included."""
        if self.shares:
            return ceil_div(self.shares[-1].first + self.shares[-1].count, self.grain) * self.grain
        return sum(each.count for each in self.columns)

    @property
    def has_gaps(self) -> bool:
        """Whether there are columns between shares."""
        return self.count > sum(each.count for each in self.columns)

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a launcher calls the operands."""
        return tuple(f"b{place}" for place in range(self.operands))

    @property
    def argument(self) -> str:
        """What a launch passes as the second operand."""
        return f"({', '.join(self.parameters)})" if self.in_place else "b"

    @property
    def can_stay(self) -> bool:
        """Whether a kernel can read operands where they lie: two, whole, with the same steps.

        And contiguous along K: beside each other in memory lie columns of one operand.
        """
        one, *others = self.columns
        if not self.in_turns or len(others) != 1 or one.first or one.k_step != 1:
            return False
        return replace(one, operand=1) == others[0]

    def steps(self, k: int) -> tuple[int, int]:
        """Of the joined operand along K and its columns: contiguous as the first one is."""
        return (1, k) if self.columns[0].k_step == 1 else (self.count, 1)

    def write(self, k: int, dtype: str) -> list[str]:
        """The statements that make the joined operand `b`; none where there is no copy."""
        if self.in_place:
            return []
        step_k, step_n = self.steps(k)
        made = [write_call("b = torch.empty", f"{k * self.count}, dtype={dtype}, device=a.device")]
        for place, each in enumerate(self.columns):
            lines = min(_LINES, next_power_of_two(k if step_n == 1 else each.count))
            along = min(_BLOCK // lines, next_power_of_two(each.count if step_n == 1 else k))
            block_k, block_n = (lines, along) if step_n == 1 else (along, lines)
            turn = len(self.columns) if self.in_turns else 1
            start = place if self.in_turns else self.shares[place].first
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
        return made

    @property
    def kernels(self) -> tuple[tuple[str, str], ...]:
        """What a product launches before it multiplies."""
        return () if self.in_place else (JOIN_COLUMNS,)

    @property
    def storing(self) -> tuple[tuple[str, str], ...]:
        """What stores a tile in the place of matmul.STORE_TILE; empty where there is one result."""
        if not self.shares:
            return ()
        following = map(_NEXT_SHARE.format, range(1, len(self.shares)))
        return (("kmem_store_tile", "".join([_STORE_SHARES, *following, _LAST_LINES])),)

    def name_apart(self, emission: Emission) -> Emission:
        """An emission with kernels of their own names where its store is one: a module may have
        other products, which store one result or other shares.
        """
        if not self.shares:
            return emission
        apart = [name for name, _ in self.storing]
        for name, text in emission.kernels:  # what is called stands before what calls it
            if name not in apart and re.search(rf"\b({'|'.join(apart)})\(", text):
                apart.append(name)
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, apart))})\b")

        def rename(text: str) -> str:
            return pattern.sub(rf"\1_{len(self.shares)}", text)

        kernels = tuple((rename(name), rename(text)) for name, text in emission.kernels)
        return replace(emission, kernels=kernels, launcher=rename(emission.launcher))

    @property
    def result_arguments(self) -> str:
        """Launch arguments that say where results lie."""
        names = ("OUT_OUTER", "OUT_INNER", "OUT_M")
        steps = zip(*(share.steps for share in self.shares), strict=True)
        given = [f"{name}={each!r}" for name, each in zip(names, steps, strict=True)]
        ranges = tuple((share.first, share.count) for share in self.shares)
        return ", ".join([*given, f"OUT_N={ranges!r}"])

    def allocate(self, placed: str) -> list[str]:
        """The statements that allocate results."""
        return [
            write_call(
                f"out{place} = torch.empty_strided",
                f"{share.spec.shape!r}, {share.spec.stride!r}",
                placed,
            )
            for place, share in enumerate(self.shares)
        ]

    @property
    def results(self) -> str:
        """What a launcher calls its results."""
        return f"({', '.join(f'out{place}' for place in range(len(self.shares)))})"
