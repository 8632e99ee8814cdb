"""What is computed: one attention as the kernels see it, and the knobs that it has."""

from dataclasses import dataclass
from math import e as euler
from math import inf, log2

from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.records import DTYPE_BYTES, TensorSpec

from .bands import Band
from .terms import Factor, Mask, Ramp, write_bias, write_factor

#: Keys and values of these many bytes stay in the L2 cache while blocks of queries of their heads
#: run side by side: half of it on an H100.
SIDE_BY_SIDE_BYTES = 25 * 2**20
#: Of all heads: with fewer, programs of 128 run at once on an H200 (132 SMs, two turns of them), so
#: that those which skip nothing decide how long all take, and a pass before them is lost.
MANY_QUERIES = 2 * 132 * 128


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(scale * factor * q k^T + bias) v for every head, or with relu for softmax.

    `steps`: of q, k, v and out along outer and inner batch axis and rows, in elements. So many
    heads of q as `shared` says, one behind the other, read the same head of k and v. A row whose
    scores are all -inf is zero if `empty_is_zero`, as in torch's operator, else NaN. `band`: the
    keys that queries see by their places, all of them without one. `mask`: what is read of that.
    `bias`: a ramp, or of the kind that is added. `activation`: "softmax" or "relu", and what
    relu's result is multiplied by as `gain`.
    """

    outer: int
    inner: int
    queries: int
    keys: int
    depth: int
    width: int
    scale: float
    dtype: str
    out: TensorSpec
    steps: tuple[tuple[int, int, int], ...]
    shared: int = 1
    empty_is_zero: bool = True
    band: Band = Band()
    mask: Mask | None = None
    bias: Mask | Ramp | None = None
    factor: Factor | None = None
    activation: str = "softmax"
    gain: float = 1.0

    @property
    def heads(self) -> int:
        return self.outer * self.inner

    @property
    def key_heads(self) -> int:
        return self.heads // self.shared

    @property
    def flops(self) -> float:
        pairs = self.band.pairs(self.queries, self.keys)
        return 2.0 * self.heads * pairs * (self.depth + self.width)

    @property
    def flags_values(self) -> bool:
        """Whether a value that is not finite must be known to programs that do not see it.

        Of fp32 the pass that splits its rows says so, and these heads are written again.
        """
        return not self.is_split and (self.band.edges > 0 and self.band.spreads or self.skips)

    @property
    def is_bounded(self) -> bool:
        """Whether a launch beforehand says which blocks of keys a mask leaves alone (bounds.py)."""
        return self.mask is not None and self.mask.is_kept and self.mask.steps[:2] == (0, 0)

    @property
    def skips(self) -> bool:
        """Whether blocks of keys are skipped that a mask hides from a whole block of queries."""
        if self.mask is None or not self.is_bounded or self.mask.fill > -inf:
            return False
        is_worth_it = self.is_split or self.heads * self.queries >= MANY_QUERIES
        return self.mask.kind in ("hides", "shows") and is_worth_it

    @property
    def likely_band(self) -> Band:
        """What queries see, as far as a prediction goes.

        A mask of parameters over as many keys as queries is a language model's: a causal one.
        """
        return Band(high=0) if self.skips and self.queries == self.keys else self.band

    @property
    def flagged_bytes(self) -> int:
        """Bytes that are read to know that."""
        width = self.width + (self.depth if self.band.is_added else 0)
        return self.key_heads * self.keys * width * DTYPE_BYTES[self.dtype]

    @property
    def side_by_side(self) -> int:
        """Heads whose programs run in order of their length, the longest first.

        All, or as many as find their keys and values in the L2 cache.
        """
        if self.band.edges == 0:
            return 1
        one = self.keys * (self.depth + self.width) * DTYPE_BYTES[self.dtype]
        most = min(self.heads, max(1, SIDE_BY_SIDE_BYTES // one) * self.shared)
        return max(count for count in range(1, most + 1) if self.heads % count == 0)

    @property
    def is_split(self) -> bool:
        """Whether operands go through the tensor cores as two fp16 parts."""
        return self.dtype == "float32"

    @property
    def parts(self) -> int:
        """Values in half precision that stand for one of an operand."""
        return 2 if self.is_split else 1

    @property
    def operand_bytes(self) -> int:
        """Bytes of q, k and v: as much as their parts have."""
        rows = self.keys * (self.depth + self.width) * self.key_heads
        rows += self.queries * self.depth * self.heads
        return rows * DTYPE_BYTES[self.dtype]

    @property
    def read_terms(self) -> dict[str, Mask]:
        """What is read of scores' size, by the names that the launcher is given."""
        named = {"mask": self.mask, "bias": self.bias}
        return {name: term for name, term in named.items() if isinstance(term, Mask)}

    @property
    def reads(self) -> tuple[str, ...]:
        """The names that the launcher gives what it is given."""
        terms = {"mask": self.mask, "bias": self.bias, "factor": self.factor}
        return "q", "k", "v", *(name for name, term in terms.items() if term is not None)

    @property
    def laid_terms(self) -> dict[str, Mask]:
        """Those whose keys a launch beforehand makes dense (laying.py)."""
        return {name: term for name, term in self.read_terms.items() if term.lying is not None}

    @property
    def mask_argument(self) -> str:
        """What a kernel is given as its mask; without one it reads none."""
        return "out" if self.mask is None else self.mask.argument("mask")

    @property
    def term_arguments(self) -> str:
        """What a kernel is given as factor, bias and mask."""
        factor = "out" if self.factor is None else "factor"
        bias = "out" if self.bias is None else self.bias.argument("bias")
        return f"{factor}, {bias}, {self.mask_argument}"

    @property
    def term_texts(self) -> tuple[str, ...]:
        """The constants of a kernel that say what scores go through."""
        mask = self.mask or Mask((0, 0, 0), "", 0.0, 0)
        return (
            f"SCALE={self.scale * self.unit!r}, UNIT={self.unit!r}",
            write_factor(self.factor),
            write_bias(self.bias),
            mask.text(self.unit, self.outer),
            self.band.text,
        )

    @property
    def is_softmax(self) -> bool:
        return self.activation == "softmax"

    @property
    def unit(self) -> float:
        """What 1 is among scores: so that exp2 gives what exp gives, or relu what it is times."""
        return log2(euler) if self.is_softmax else self.gain


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """The knobs of attention.

    `form` is "fused" or "two_stages"; a tile has `block_m` queries and `block_n` keys, and the
    products of two stages take steps of `block_k`. With `accuracy` 1 scores are sums of all four
    products of parts, the smallest included.
    """

    form: str
    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    accuracy: int = 0

    @property
    def is_fused(self) -> bool:
        return self.form == "fused"

    @property
    def run(self) -> str:
        """Launch arguments."""
        return f"num_warps={self.warps}, num_stages={self.stages}"


def padded(width: int) -> int:
    """Elements of a row of parts: whole steps of 64 where rows are long, else a power of two."""
    return ceil_div(width, 64) * 64 if width > 64 else max(16, next_power_of_two(width))
