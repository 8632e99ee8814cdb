"""Products whose operands are split into parts ahead of the multiplication: the launches.

Kernels in ahead_kernels.py.
"""

from dataclasses import dataclass

from kmem.codegen.products.contraction import Product, ProductAxis
from kmem.codegen.products.matmul import (
    operand_arguments,
    output_arguments,
    reducing_options,
    triangle_arguments,
)
from kmem.codegen.products.tuning import tile_count
from kmem.codegen.text.accumulate import PROMOTE_ELEMENTS
from kmem.codegen.text.calls import write_call, write_launch
from kmem.codegen.text.parts import SCALES, STORE_HALVES
from kmem.problem.sizes import ceil_div, next_power_of_two

from .ahead_kernels import (
    LARGEST,
    LINE_STATES,
    MEND_TILES,
    PARTS_MATMUL,
    SPLIT_LINES,
    SPLIT_OPERAND,
)
from .knobs import SplitSettings, is_compensated, promote_steps, terms_of

#: Programs of the pass over an operand that keep the memory busy, and chunks of a line at most: the
#: last kernel reads one state for each.
PASS_PROGRAMS, MAX_CHUNKS = 1024, 64
#: Sides of a block of that pass: the one along which elements are neighbours, and the other.
PASS_LONG, PASS_SHORT = 128, 32
#: Elements of whole lines that one program holds, at least (if there are so many lines) and at most
#: where it splits them in one pass: 64 of a thread.
LINES_LEAST, LINES_MOST = 2048, 8192
#: The mending kernel: tiles of a row that one program looks after, rows and columns of a tile at
#: most, steps of K. Larger tiles of exact products spill (496 bytes a thread, Triton 3.6).
MEND_WIDTH = 16
MEND_TILE = 64
MEND_BLOCK_K = 16


@dataclass(frozen=True, slots=True)
class Parts:
    """How one operand's parts lie, and the statements that write them.

    Sizes are the padded number of lines, the steps along lines and K, and the chunks of K.
    """

    statements: tuple[str, ...]
    kernels: tuple[tuple[str, str], ...]
    padded_lines: int
    line_step: int
    k_step: int
    chunks: int


def write_ahead(product: Product, knobs: SplitSettings) -> tuple[list[tuple[str, str]], list[str]]:
    """The kernels that split both operands, multiply the parts into `target`, and mend it, and the
    statements that launch them.
    """
    padded_k = _padded_k(product, knobs)
    a = _write_parts(product, knobs, "a", padded_k)
    b = _write_parts(product, knobs, "b", padded_k)
    padding = (
        f"PADDED_M={a.padded_lines}, PADDED_N={b.padded_lines}, PADDED_K={padded_k}",
        *_matrix_steps(product),
    )
    statements = [
        *a.statements,
        *b.statements,
        _write_product(product, knobs, a, b, padding),
        _write_mending(product, knobs, a, b, padding),
    ]
    passes = dict.fromkeys((LINE_STATES, *a.kernels, *b.kernels))
    return [SCALES, STORE_HALVES, *passes, PARTS_MATMUL, MEND_TILES], statements


def is_split_at_once(product: Product, knobs: SplitSettings, name: str) -> bool:
    """Whether one launch splits an operand, "a" or "b": a program holds whole lines of it."""
    is_along_k = getattr(product.k, name) == 1
    return is_along_k and next_power_of_two(_padded_k(product, knobs)) <= LINES_MOST


def _lies_along_k(line_stride: int, k_stride: int) -> bool:
    """Whether neighbours in memory are those along K, or none are."""
    return k_stride == 1 or line_stride != 1


def _padded_k(product: Product, knobs: SplitSettings) -> int:
    return _pad(product.k.size, knobs.block_k * knobs.splits)


def _pad(size: int, block: int) -> int:
    return ceil_div(size, block) * block


def _matrix_steps(product: Product) -> tuple[str, str]:
    """How many matrices of parts each operand steps over along the batch axes."""
    outer, inner = product.batch
    steps = []
    for name in ("a", "b"):
        inner_step = int(getattr(inner, name) != 0)
        whole = inner.size if inner_step else 1
        outer_step = whole if getattr(outer, name) else 0
        key = f"MATRICES_{name.upper()}"
        steps.append(f"{key}_OUTER={outer_step}, {key}_INNER={inner_step}")
    return tuple(steps)


def _write_product(
    product: Product, knobs: SplitSettings, a: Parts, b: Parts, padding: tuple[str, ...]
) -> str:
    tiles_m, tiles_n = tile_count(product, knobs)
    return write_launch(
        "kmem_parts_matmul",
        tiles_m * tiles_n * knobs.splits * product.batches,
        "a_high, a_low, a_exponents, b_high, b_low, b_exponents, target",
        *output_arguments(product),
        triangle_arguments(product),
        *padding,
        f"PARTS_A_M={a.line_step}, PARTS_A_K={a.k_step}, "
        f"PARTS_B_K={b.k_step}, PARTS_B_N={b.line_step}",
        f"TERMS={terms_of(product, knobs)}, PROMOTE={promote_steps(product, knobs)}, "
        f"COMPENSATED={is_compensated(product, knobs)}, SPLITS={knobs.splits}",
        f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, GROUP={knobs.group}, "
        f"BLOCK_K={knobs.block_k}",
        f"num_warps={knobs.warps}, num_stages={knobs.stages}",
        reducing_options(product),
    )


def _write_mending(
    product: Product, knobs: SplitSettings, a: Parts, b: Parts, padding: tuple[str, ...]
) -> str:
    mend_m, mend_n = min(MEND_TILE, knobs.block_m), min(MEND_TILE, knobs.block_n)
    tiles_n = b.padded_lines // mend_n
    width = min(MEND_WIDTH, next_power_of_two(tiles_n))
    tiles = a.padded_lines // mend_m * ceil_div(tiles_n, width)
    return write_launch(
        "kmem_mend_tiles",
        tiles * knobs.splits * product.batches,
        "a, b, a_states, b_states, target",
        *output_arguments(product),
        *operand_arguments(product),
        *padding,
        f"A_CHUNKS={a.chunks}, B_CHUNKS={b.chunks}, WIDTH={width}, SPLITS={knobs.splits}",
        f"BLOCK_M={mend_m}, BLOCK_N={mend_n}, BLOCK_K={MEND_BLOCK_K}, CHAIN={PROMOTE_ELEMENTS}",
        "num_warps=4, num_stages=3",
        reducing_options(product),
    )


def _write_parts(product: Product, knobs: SplitSettings, name: str, padded_k: int) -> Parts:
    """Parts keep the order of their source: K contiguous if it is there, else the lines."""
    axis: ProductAxis = product.m if name == "a" else product.n
    padded_lines = _pad(axis.size, knobs.block_m if name == "a" else knobs.block_n)
    line_stride, k_stride = getattr(axis, name), getattr(product.k, name)
    strides = [getattr(batch, name) for batch in product.batch]
    outer, inner = (
        batch.size if stride else 1 for batch, stride in zip(product.batch, strides, strict=True)
    )
    matrices = outer * inner
    along_k = _lies_along_k(line_stride, k_stride)
    line_step, k_step = (padded_k, 1) if along_k else (1, padded_lines)
    terms = terms_of(product, knobs)
    high, low = f"{name}_high", f"{name}_low"
    source = (
        f"LINES={axis.size}, K={product.k.size}, INNER={inner}",
        f"X_OUTER={strides[0]}, X_INNER={strides[1]}, X_LINE={line_stride}, X_K={k_stride}",
        f"PADDED_LINES={padded_lines}",
    )
    parts = f"PADDED_K={padded_k}, P_LINE={line_step}, P_K={k_step}, TERMS={terms}"
    made = f"{high}, {low}, {name}_exponents, {name}_states"
    if is_split_at_once(product, knobs, name):
        block_k = next_power_of_two(padded_k)
        block_l = min(max(1, LINES_LEAST // block_k), padded_lines & -padded_lines)
        chunks, kernels = 1, (SPLIT_LINES,)
        launches = [
            write_launch(
                "kmem_split_lines",
                matrices * (padded_lines // block_l),
                f"{name}, {made}",
                *source,
                f"BLOCK_L={block_l}, BLOCK_K={block_k}",
                parts,
                f"num_warps={4 if block_l * block_k < LINES_MOST else 8}",
            )
        ]
    else:
        block_k = min(PASS_LONG if along_k else PASS_SHORT, padded_k & -padded_k)
        block_l = min(PASS_SHORT if along_k else PASS_LONG, padded_lines & -padded_lines)
        blocks = padded_lines // block_l
        wanted = max(1, min(MAX_CHUNKS, ceil_div(PASS_PROGRAMS, matrices * blocks)))
        chunk = max(block_k, next_power_of_two(ceil_div(padded_k, wanted)))
        chunks, kernels = ceil_div(padded_k, chunk), (LARGEST, SPLIT_OPERAND)
        programs = matrices * chunks * blocks
        shared = (
            *source,
            f"CHUNK={chunk}, CHUNKS={chunks}",
            f"BLOCK_L={block_l}, BLOCK_K={block_k}",
        )
        launches = [
            _allocate(name, "largest", (matrices, chunks, padded_lines), "int32"),
            write_launch("kmem_largest", programs, f"{name}, {name}_largest", *shared),
            write_launch(
                "kmem_split_operand", programs, f"{name}, {name}_largest, {made}", *shared, parts
            ),
        ]
    statements = (
        _allocate(name, "states", (matrices, chunks, 2, padded_lines), "int32"),
        _allocate(name, "exponents", (matrices, padded_lines), "int32"),
        _allocate(name, "high", (matrices, padded_lines * padded_k), "float16"),
        f"{low} = torch.empty_like({high})" if terms == 3 else f"{low} = {high}  # not read",
        *launches,
    )
    return Parts(statements, kernels, padded_lines, line_step, k_step, chunks)


def _allocate(name: str, value: str, shape: tuple[int, ...], dtype: str) -> str:
    """Scratch of one operand, on its device."""
    placed = f"dtype=torch.{dtype}, device={name}.device"
    return write_call(f"{name}_{value} = torch.empty", f"{shape!r}, {placed}")
