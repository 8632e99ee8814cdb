"""The matrix-vector kernel as Triton text, its knobs and its launch."""

from dataclasses import dataclass

from kmem.codegen.chains.ports import hand_in
from kmem.codegen.products.contraction import Product
from kmem.codegen.products.matmul import (
    REDUCE_SPLITS,
    STORE_TILE,
    functions_of,
    output_arguments,
    write_launcher,
)
from kmem.codegen.products.tuning import operand_width
from kmem.codegen.text.accumulate import ADD_COMPENSATED, LONG_CHAIN
from kmem.codegen.text.calls import write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission

#: Bytes of the widest load of a thread. Source: PTX ISA, ld: .v4.b32.
_VECTOR_BYTES = 16

_KERNEL = (
    "kmem_matvec",
    '''
@triton.jit
def kmem_matvec(
    matrix, vectors, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr, PLACE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    LINES: tl.constexpr, VECTORS: tl.constexpr, K: tl.constexpr,
    MATRIX_OUTER: tl.constexpr, MATRIX_INNER: tl.constexpr,
    MATRIX_LINE: tl.constexpr, MATRIX_K: tl.constexpr,
    VECTOR_OUTER: tl.constexpr, VECTOR_INNER: tl.constexpr,
    VECTOR_K: tl.constexpr, VECTOR_N: tl.constexpr,
    LINES_ARE_ROWS: tl.constexpr, COMPENSATED: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):
    """BLOCK_L lines of the matrix against all vectors over one split of K.

    GROUP products side by side, those of one load, are added at once; their sums stay in lanes and
    are added once, at the end. COMPENSATED: lanes keep what they lose to rounding.
    """
    blocks: tl.constexpr = (LINES + BLOCK_L - 1) // BLOCK_L
    k_steps: tl.constexpr = (K + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS)
    even: tl.constexpr = (LINES % BLOCK_L == 0) and (K % (BLOCK_K * SPLITS) == 0)
    pid = tl.program_id(0)
    if MATRIX_K == 1:
        # neighbours read on in the same lines: few pages of memory are open at a time
        split = pid % SPLITS
        block = (pid // SPLITS) % blocks
    else:
        block = pid % blocks
        split = (pid // blocks) % SPLITS
    batch = pid // (blocks * SPLITS)
    outer = (batch // BATCH_INNER).to(tl.int64)
    inner = (batch % BATCH_INNER).to(tl.int64)
    lines = block * BLOCK_L + tl.arange(0, BLOCK_L)
    numbers = tl.arange(0, BLOCK_V)
    steps = tl.arange(0, BLOCK_K)
    first_k = split * k_steps * BLOCK_K
    matrix += (
        outer * MATRIX_OUTER
        + inner * MATRIX_INNER
        + block.to(tl.int64) * (BLOCK_L * MATRIX_LINE)
        + first_k.to(tl.int64) * MATRIX_K
    )
    vectors += outer * VECTOR_OUTER + inner * VECTOR_INNER + first_k.to(tl.int64) * VECTOR_K
    at_matrix = tl.arange(0, BLOCK_L)[:, None] * MATRIX_LINE + steps[None, :] * MATRIX_K
    at_vectors = numbers[:, None] * VECTOR_N + steps[None, :] * VECTOR_K
    acc = tl.zeros(
        (BLOCK_L, BLOCK_K // GROUP) if GROUP > 1 else (BLOCK_L, BLOCK_V, BLOCK_K), tl.float32
    )
    lost = tl.zeros(acc.shape, tl.float32)
    for step in range(k_steps):
        left = K - first_k - step * BLOCK_K
        if even:
            values = tl.load(matrix + at_matrix, eviction_policy="evict_first").to(tl.float32)
        else:
            inside = (lines < LINES)[:, None] & (steps < left)[None, :]
            values = tl.load(
                matrix + at_matrix, mask=inside, other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)
        if even and VECTORS == BLOCK_V:
            weights = tl.load(vectors + at_vectors, eviction_policy="evict_last").to(tl.float32)
        else:
            wanted = (numbers < VECTORS)[:, None] & (steps < left)[None, :]
            weights = tl.load(
                vectors + at_vectors, mask=wanted, other=0.0, eviction_policy="evict_last"
            ).to(tl.float32)
        if GROUP > 1:
            # two axes throughout: with one for the vectors every step would move its values between
            # threads
            part = tl.sum(tl.reshape(values * weights, (BLOCK_L, BLOCK_K // GROUP, GROUP)), axis=2)
        else:
            part = values[:, None, :] * weights[None, :, :]
        if COMPENSATED:
            acc, lost = kmem_add_compensated(acc, lost, part)
        else:
            acc += part
        matrix += BLOCK_K * MATRIX_K
        vectors += BLOCK_K * VECTOR_K
    sums = tl.sum(acc, axis=1)[:, None] if GROUP > 1 else tl.sum(acc, axis=2)
    if LINES_ARE_ROWS:
        kmem_store_tile(
            out, sums, batch, split, lines, numbers,
            extra, AFTER, STEPS, PLACE, M, N,
            BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N,
            False,
        )
    else:
        kmem_store_tile(
            out, tl.trans(sums), batch, split, numbers, lines,
            extra, AFTER, STEPS, PLACE, M, N,
            BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N,
            False,
        )
''',
)


@dataclass(frozen=True, slots=True)
class MatvecSettings:
    """The knobs of a matrix-vector product.

    A program takes `block_l` lines of the matrix and `block_k` elements of K at a time; `splits`
    are those of K. `accuracy` is the rung of the precision ladder: see `is_compensated`.
    """

    block_l: int
    block_k: int
    splits: int
    warps: int
    accuracy: int = 0


@dataclass(frozen=True, slots=True)
class Roles:
    """Which operand is the matrix, and how it lies.

    `steps` are the matrix's, in elements, along both batch axes, its lines and K; `vector_steps`
    those of the vectors, with the vectors for lines.
    """

    matrix_is_a: bool
    lines: int
    vectors: int
    steps: tuple[int, int, int, int]
    vector_steps: tuple[int, int, int, int]

    @property
    def along_k(self) -> bool:
        """Whether neighbours in memory are neighbours along K."""
        return self.steps[3] == 1


def roles_of(product: Product, like: Product | None = None) -> Roles:
    """The larger side of the output belongs to the matrix, or the side that does so in `like`."""
    outer, inner = product.batch
    m, n = product.m.size, product.n.size
    a = (outer.a, inner.a, product.m.a, product.k.a)
    b = (outer.b, inner.b, product.n.b, product.k.b)
    decides = like or product
    is_a = decides.n.size <= decides.m.size
    return Roles(True, m, n, a, b) if is_a else Roles(False, n, m, b, a)


def added_at_once(product: Product, roles: Roles, block_k: int) -> int:
    """Products of one vector that are added at once: those of a 16-byte load along K."""
    if roles.vectors > 1 or not roles.along_k:
        return 1
    return min(block_k, _VECTOR_BYTES // operand_width(product))


def is_compensated(product: Product, knobs: MatvecSettings) -> bool:
    """Whether sums keep what they lose: long ones do, and all of several steps on rung 1."""
    steps = ceil_div(product.k.size, knobs.block_k * knobs.splits)
    return steps > (LONG_CHAIN if knobs.accuracy == 0 else 1)


def emit_matvec(product: Product, knobs: MatvecSettings, like: Product | None = None) -> Emission:
    """The kernels and the launcher at one setting.

    Args:
        like: the product at other sizes, whose operands take the same roles.
    """
    roles = roles_of(product, like)
    matrix, vector = roles.steps, roles.vector_steps
    launch = write_launch(
        "kmem_matvec",
        ceil_div(roles.lines, knobs.block_l) * knobs.splits * product.batches,
        f"{'a, b' if roles.matrix_is_a else 'b, a'}, target",
        *output_arguments(product),
        f"LINES={roles.lines}, VECTORS={roles.vectors}, K={product.k.size}",
        f"MATRIX_OUTER={matrix[0]}, MATRIX_INNER={matrix[1]}, MATRIX_LINE={matrix[2]}, "
        f"MATRIX_K={matrix[3]}",
        f"VECTOR_OUTER={vector[0]}, VECTOR_INNER={vector[1]}, VECTOR_N={vector[2]}, "
        f"VECTOR_K={vector[3]}",
        f"LINES_ARE_ROWS={roles.matrix_is_a}, COMPENSATED={is_compensated(product, knobs)}, "
        f"SPLITS={knobs.splits}",
        f"BLOCK_L={knobs.block_l}, BLOCK_V={next_power_of_two(roles.vectors)}, "
        f"BLOCK_K={knobs.block_k}, GROUP={added_at_once(product, roles, knobs.block_k)}",
        f"num_warps={knobs.warps}",
    )
    kernels = hand_in((STORE_TILE, ADD_COMPENSATED, REDUCE_SPLITS, _KERNEL), functions_of(product))
    return Emission(kernels, write_launcher(product, [launch], knobs.splits))
