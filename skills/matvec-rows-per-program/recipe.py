"""Writes products of one large matrix with one to sixteen vectors: memory-bound, so the matrix is
read once, wide and in order.
"""

from collections.abc import Sequence
from math import log2

from kmem.codegen.contraction import Product, find_products
from kmem.codegen.epilogue import specialise
from kmem.codegen.matmul import (
    REDUCE_SPLITS,
    STORE_TILE,
    ceil_div,
    operand_width,
    output_arguments,
    write_launcher,
)
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Recipe, Settings, Site, Space
from kmem.records import Contract, Device

#: More vectors than this belong to the tensor cores.
MAX_VECTORS = 16
#: Bytes of one step and thread that its registers hold: 40 to 80 registers in fp32 and bf16.
#: Source: Triton 3.6 for sm_90.
MOST_BYTES = 256
#: Warps of a multiprocessor, with a step's loads on their way, at which a matrix arrives at half
#: speed. Source: H200, 2026-11-22, 2048 x 1048576 in fp32 and bf16: 8, 16 and 31 warps took 1.13 to
#: 1.4, 1.01 to 1.06 and 1.00 to 1.01 times the time of the best.
_HALF_SPEED_WARPS = 3.0
#: The same of bytes on their way, at 4.37e12 bytes/s: 8.2 MB took 1.01 to 1.06 times the time of
#: the best, 16.4 MB 1.00 to 1.05.
_HALF_SPEED_BYTES = 1.3e6
#: What reading half as many bytes of a line before the next costs, from so many on. Source: as
#: above, bf16: runs of 4 KB, 2 KB, 1 KB and 512 bytes took 1.12, 1.16, 1.18 and 1.21 ms in the
#: judge's shared memory, where 4 KB and 2 KB took 0.986 and 0.993 in a program's own.
_LINE_CHANGE, _LONG_RUN = 0.015, 16384
#: Share of the time of a last, partly filled wave of programs that is lost: those that run get the
#: others' bandwidth. Source: as above; 1.2 to 1.6 waves took 1.01 to 1.08 times the time of the
#: best.
_TAIL = 0.2
#: What twice as many lines read at a time cost, from so many on. Source: as above, bf16 and fp32,
#: neighbouring programs in the same lines: 66, 264 and 1056 lines at a time took 0.975, 0.994 and
#: 1.004 ms, and 1.92, 1.92 and 1.93 ms.
_LINE_SPREAD, _FEW_LINES = 0.006, 64

_KERNEL = (
    "kmem_matvec",
    '''
@triton.jit
def kmem_matvec(
    matrix, vectors, out, EPILOGUE_PARAMETERS M: tl.constexpr, N: tl.constexpr, BATCH: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr, OUT_M: tl.constexpr, OUT_N: tl.constexpr,
    TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr, LINES: tl.constexpr, VECTORS: tl.constexpr, K: tl.constexpr,
    MATRIX_OUTER: tl.constexpr, MATRIX_INNER: tl.constexpr, MATRIX_LINE: tl.constexpr, MATRIX_K: tl.constexpr,
    VECTOR_OUTER: tl.constexpr, VECTOR_INNER: tl.constexpr, VECTOR_K: tl.constexpr, VECTOR_N: tl.constexpr,
    LINES_ARE_ROWS: tl.constexpr, SPLITS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """BLOCK_L lines of the matrix against all vectors over one split of K.

    GROUP products side by side, those of one load, are added at once; their sums stay in lanes and are added once, at the end.
    """
    blocks: tl.constexpr = (LINES + BLOCK_L - 1) // BLOCK_L
    k_steps: tl.constexpr = (K + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS)
    even: tl.constexpr = (LINES % BLOCK_L == 0) and (K % (BLOCK_K * SPLITS) == 0)
    pid = tl.program_id(0)
    if MATRIX_K == 1:  # neighbours read on in the same lines: few pages of memory are open at a time
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
    matrix += outer * MATRIX_OUTER + inner * MATRIX_INNER + block.to(tl.int64) * (BLOCK_L * MATRIX_LINE) + first_k.to(tl.int64) * MATRIX_K
    vectors += outer * VECTOR_OUTER + inner * VECTOR_INNER + first_k.to(tl.int64) * VECTOR_K
    at_matrix = tl.arange(0, BLOCK_L)[:, None] * MATRIX_LINE + steps[None, :] * MATRIX_K
    at_vectors = numbers[:, None] * VECTOR_N + steps[None, :] * VECTOR_K
    acc = tl.zeros((BLOCK_L, BLOCK_K // GROUP) if GROUP > 1 else (BLOCK_L, BLOCK_V, BLOCK_K), tl.float32)
    for step in range(k_steps):
        left = K - first_k - step * BLOCK_K
        if even:
            values = tl.load(matrix + at_matrix, eviction_policy="evict_first").to(tl.float32)
        else:
            inside = (lines < LINES)[:, None] & (steps < left)[None, :]
            values = tl.load(matrix + at_matrix, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        if even and VECTORS == BLOCK_V:
            weights = tl.load(vectors + at_vectors, eviction_policy="evict_last").to(tl.float32)
        else:
            wanted = (numbers < VECTORS)[:, None] & (steps < left)[None, :]
            weights = tl.load(vectors + at_vectors, mask=wanted, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if GROUP > 1:  # two axes throughout: with one for the vectors every step would move its values between threads
            acc += tl.sum(tl.reshape(values * weights, (BLOCK_L, BLOCK_K // GROUP, GROUP)), axis=2)
        else:
            acc += values[:, None, :] * weights[None, :, :]
        matrix += BLOCK_K * MATRIX_K
        vectors += BLOCK_K * VECTOR_K
    sums = tl.sum(acc, axis=1)[:, None] if GROUP > 1 else tl.sum(acc, axis=2)
    if LINES_ARE_ROWS:
        kmem_store_tile(
            out, sums, batch, split, lines, numbers, EPILOGUE_ARGUMENTS M, N,
            BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, TRIANGLE, DIAGONAL, False,
        )
    else:
        kmem_store_tile(
            out, tl.trans(sums), batch, split, numbers, lines, EPILOGUE_ARGUMENTS M, N,
            BATCH, BATCH_INNER, SPLITS, OUT_OUTER, OUT_INNER, OUT_M, OUT_N, TRIANGLE, DIAGONAL, False,
        )
''',
)


class Matvec(Recipe):
    """Matrix times few vectors (or few rows times a matrix) with fp32 sums; exact products in every
    dtype it takes.
    """

    operators = ("matvec", "matmul", "batched_matmul", "linear")

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = find_products(graph, contract)
        return [
            site for site in sites if min(site.detail.m.size, site.detail.n.size) <= MAX_VECTORS
        ]

    def space(self, site: Site, device: Device) -> Space:
        product: Product = site.detail
        rows_first, lines, vectors, line_step, k_step = _roles(product)
        most_k, most_lines = next_power_of_two(product.k.size), next_power_of_two(lines)
        if k_step == 1 or line_step != 1:  # lanes along K: a few lines, a wide block of K
            block_l, block_k = (1, 2, 4, 8), (256, 512, 1024, 2048, 4096, 8192)
        else:  # lanes along the lines: many lines, a few steps of K
            block_l, block_k = (64, 128, 256), (8, 16, 32)
        knobs = {
            "block_l": tuple(sorted({min(value, most_lines) for value in block_l})),
            "block_k": tuple(sorted({min(value, most_k) for value in block_k})),
            "splits": _split_choices(product, lines, device),
            "warps": (1, 2, 4, 8),
        }
        padded = next_power_of_two(vectors)
        # products that are not added at once take a register each
        most = MOST_BYTES // (operand_width(product) if _group(product, most_k) > 1 else 4)

        def is_legal(settings: Settings) -> bool:
            per_thread = (
                int(settings["block_l"])
                * int(settings["block_k"])
                * padded
                / (int(settings["warps"]) * device.warp_size)
            )
            small = most_lines * most_k < 4096
            if int(settings["splits"]) * int(settings["block_k"]) > max(
                product.k.size, int(settings["block_k"])
            ):
                return False
            return (per_thread >= 4 or (small and settings["warps"] == 1)) and per_thread <= most

        return Space(knobs, is_legal)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        product: Product = site.detail
        _, lines, vectors, _, _ = _roles(product)
        block_l, block_k, splits, warps = (
            int(settings[name]) for name in ("block_l", "block_k", "splits", "warps")
        )
        width, threads = operand_width(product), warps * device.warp_size
        programs = ceil_div(lines, block_l) * splits * product.batches
        # Registers of a thread: partial sums in fp32, the values on their way, and addresses and
        # the vector.
        group = _group(product, block_k)
        spare = 20 if group > 1 else 40
        registers = min(
            255,
            block_l * block_k * (next_power_of_two(vectors) / group + width / 4) / threads + spare,
        )
        per_sm = min(
            device.max_blocks_per_sm,
            device.registers_per_sm // int(registers * threads),
            device.max_threads_per_sm // threads,
        )
        resident = min(programs, device.sm_count * max(1, per_sm))
        warps_waiting = _HALF_SPEED_WARPS * device.sm_count / (resident * warps)
        bytes_waiting = (
            _HALF_SPEED_BYTES
            * device.read_bytes_per_s
            / 4.37e12
            / (resident * block_l * block_k * width)
        )
        operand_a, operand_b, result = product.operand_bytes
        # Partial sums of the splits are written and read once.
        partial_bytes = 8 * splits * result // width if splits > 1 else 0
        bytes_ms = (
            (operand_a + operand_b + result + partial_bytes)
            / (0.92 * device.read_bytes_per_s)
            * 1e3
        )
        # Vectors are read again from L2, at about twice DRAM's rate, by every block of lines, and a
        # third of that is not hidden; each one is another multiply-add for every element of the
        # matrix.
        again_ms = (
            ceil_div(lines, block_l)
            * product.batches
            * vectors
            * product.k.size
            * width
            / (2 * device.read_bytes_per_s)
            * 1e3
        )
        busy = max(1.0, 0.5 + 0.08 * vectors)
        waves = programs / resident
        tail = 1.0 + _TAIL * (ceil_div(programs, resident) / waves - 1.0)
        changes = _LINE_CHANGE * max(0.0, log2(_LONG_RUN / (block_k * width)))
        changes += _LINE_SPREAD * max(0.0, log2(resident * block_l / splits / _FEW_LINES))
        read_ms = bytes_ms * busy * tail * (1.0 + warps_waiting**2 + bytes_waiting**2 + changes)
        return (
            read_ms
            + again_ms / 3
            + 3e-4 * ceil_div(programs, resident)
            + device.launch_ms * (1 + (splits > 1))
        )

    def emit(self, site: Site, settings: Settings) -> Emission:
        product: Product = site.detail
        rows_first, lines, vectors, line_step, k_step = _roles(product)
        outer, inner = product.batch
        a = (outer.a, inner.a, product.m.a, product.k.a)
        b = (outer.b, inner.b, product.n.b, product.k.b)
        matrix, vector = (a, b) if rows_first else (b, a)
        block_l, splits = int(settings["block_l"]), int(settings["splits"])
        launch = (
            f"kmem_matvec{product.epilogue.suffix}[({ceil_div(lines, block_l) * splits * product.batches},)]("
            f"{'a, b' if rows_first else 'b, a'}, target, {output_arguments(product)}, "
            f"LINES={lines}, VECTORS={vectors}, K={product.k.size}, "
            f"MATRIX_OUTER={matrix[0]}, MATRIX_INNER={matrix[1]}, MATRIX_LINE={matrix[2]}, "
            f"MATRIX_K={matrix[3]}, "
            f"VECTOR_OUTER={vector[0]}, VECTOR_INNER={vector[1]}, VECTOR_N={vector[2]}, "
            f"VECTOR_K={vector[3]}, "
            f"LINES_ARE_ROWS={rows_first}, SPLITS={splits}, BLOCK_L={block_l}, "
            f"BLOCK_V={next_power_of_two(vectors)}, BLOCK_K={settings['block_k']}, "
            f"GROUP={_group(product, int(settings['block_k']))}, "
            f"num_warps={settings['warps']})"
        )
        kernels = specialise((STORE_TILE, REDUCE_SPLITS, _KERNEL), product.epilogue)
        return Emission(kernels, write_launcher(product, launch, splits))


def _group(product: Product, block_k: int) -> int:
    """Products of one vector that are added at once: those of a 16-byte load along K."""
    _, _, vectors, _, k_step = _roles(product)
    return min(block_k, 16 // operand_width(product)) if vectors == 1 and k_step == 1 else 1


def _roles(product: Product) -> tuple[bool, int, int, int, int]:
    """Whether a is the matrix; its lines, the number of vectors, and the matrix's steps along lines
    and along K.
    """
    if product.n.size <= product.m.size:
        return True, product.m.size, product.n.size, product.m.a, product.k.a
    return False, product.n.size, product.m.size, product.n.b, product.k.b


def _split_choices(product: Product, lines: int, device: Device) -> tuple[int, ...]:
    """1, and as many splits as give every SM 2 to 64 programs of eight lines, none under 2048
    elements of K.
    """
    blocks = ceil_div(lines, 8) * product.batches
    wanted = {
        next_power_of_two(max(1, each * device.sm_count // blocks))
        for each in (2, 4, 8, 16, 32, 64)
    }
    return tuple(
        sorted({1} | {min(value, max(1, product.k.size // 2048), 256) for value in wanted})
    )


RECIPE = Matvec()
