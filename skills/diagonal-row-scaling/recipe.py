"""Writes diag(v) @ B as the row scaling it is, and A @ diag(v) as column scaling."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.matmul import ceil_div
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Operand, Recipe, Settings, Site, Space
from kmem.records import Contract, Device, TensorSpec

_KERNELS = (
    (
        "kmem_scale_lines",
        '''
@triton.jit
def kmem_is_not_finite(x):
    return (x != x) | (tl.abs(x) == float("inf"))


@triton.jit
def kmem_scale_lines(
    vector, matrix, counts, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, V_ROW: tl.constexpr, V_COLUMN: tl.constexpr,
    X_ROW: tl.constexpr, X_COLUMN: tl.constexpr, OUT_ROW: tl.constexpr, OUT_COLUMN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """out[r, c] = vector[r or c] * matrix[r, c]; the step that does not apply is 0. Counts what is not finite along the summed axis."""
    blocks: tl.constexpr = (COLUMNS + BLOCK_C - 1) // BLOCK_C
    pid = tl.program_id(0)
    rows = ((pid // blocks) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None].to(tl.int64)
    columns = ((pid % blocks) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :].to(tl.int64)
    inside = (rows < ROWS) & (columns < COLUMNS)
    scale = tl.load(vector + rows * V_ROW + columns * V_COLUMN, mask=inside, other=0.0)
    values = tl.load(matrix + rows * X_ROW + columns * X_COLUMN, mask=inside, other=0.0).to(tl.float32)
    # From 0, as a matrix product sums: -0.0 becomes 0.0.
    product = scale.to(tl.float32) * values + 0.0
    tl.store(out + rows * OUT_ROW + columns * OUT_COLUMN, product.to(out.dtype.element_ty), mask=inside)
    wrong = kmem_is_not_finite(values)
    if tl.max(tl.max(wrong.to(tl.int32), axis=1), axis=0) > 0:
        line = columns + rows * 0 if V_ROW != 0 else rows + columns * 0
        tl.atomic_add(counts + line, wrong.to(tl.int32), mask=wrong & inside)
''',
    ),
    (
        "kmem_spread_non_finite",
        '''
@triton.jit
def kmem_spread_non_finite(
    matrix, counts, out, LINES: tl.constexpr, LENGTH: tl.constexpr, X_LINE: tl.constexpr, X_STEP: tl.constexpr,
    OUT_LINE: tl.constexpr, OUT_STEP: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """NaN where the dense product sums 0 * infinity or 0 * NaN: in every line with a non-finite element at another place of it."""
    lines = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    count = tl.load(counts + lines, mask=lines < LINES, other=0)
    if tl.max(count) > 0:
        for start in range(0, LENGTH, BLOCK_S):
            steps = (start + tl.arange(0, BLOCK_S)).to(tl.int64)[None, :]
            inside = (lines < LINES)[:, None] & (steps < LENGTH)
            values = tl.load(matrix + lines.to(tl.int64)[:, None] * X_LINE + steps * X_STEP, mask=inside, other=0.0).to(tl.float32)
            spread = count[:, None] > kmem_is_not_finite(values).to(tl.int32)
            wrong = tl.full((BLOCK_L, BLOCK_S), float("nan"), tl.float32).to(out.dtype.element_ty)
            tl.store(out + lines.to(tl.int64)[:, None] * OUT_LINE + steps * OUT_STEP, wrong, mask=inside & spread)
''',
    ),
)
#: Lines and elements of a tile of the second kernel, which on finite input reads the counts alone.
_SPREAD_L, _SPREAD_S = 64, 64

_DIAGONALS = ("aten.diag.default", "aten.diag_embed.default")
_PRODUCTS = ("aten.mm.default", "aten.matmul.default")
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Scaling:
    """Which side the diagonal stands on, and the matrix and result."""

    on_rows: bool
    vector: TensorSpec
    matrix: TensorSpec
    out: TensorSpec


class DiagonalScaling(Recipe):
    """A product with a diagonal matrix made from a vector in the graph; the same bits as the dense
    product.
    """

    operators = ("diagonal_matmul",)

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = []
        for node in graph.nodes:
            if node.target not in _PRODUCTS or len(node.args) != 2:
                continue
            for side in (0, 1):
                diagonal, matrix = graph.node(node.args[side].name), node.args[1 - side].name
                if (
                    diagonal is None
                    or diagonal.target not in _DIAGONALS
                    or len(diagonal.args) != 1
                    or diagonal.kwargs
                ):
                    continue
                vector = diagonal.args[0].name
                if (
                    len(graph.spec(vector).shape) != 1
                    or len(graph.spec(matrix).shape) != 2
                    or node.spec.dtype not in _DTYPES
                ):
                    continue
                detail = Scaling(side == 0, graph.spec(vector), graph.spec(matrix), node.spec)
                # A diagonal that something else reads as well is still made, elsewhere.
                nodes = (
                    (diagonal.name, node.name)
                    if graph.has_one_user(diagonal.name)
                    else (node.name,)
                )
                inputs = (Operand(vector, detail.vector), Operand(matrix, detail.matrix))
                read = detail.vector.bytes + detail.matrix.bytes + detail.out.bytes
                sites.append(
                    Site(
                        node.name,
                        "diagonal_matmul",
                        nodes,
                        inputs,
                        (Operand(node.name, node.spec),),
                        detail,
                        read,
                        float(node.spec.numel),
                        ("algebraic",),
                    )
                )
                break
        return sites

    def space(self, site: Site, device: Device) -> Space:
        rows, columns = site.detail.out.shape
        knobs = {
            "block_r": tuple(sorted({min(value, next_power_of_two(rows)) for value in (1, 4)})),
            "block_c": tuple(
                sorted({min(value, next_power_of_two(columns)) for value in (512, 1024, 2048)})
            ),
            "warps": (4, 8),
        }
        return Space(knobs)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        per_thread = (
            int(settings["block_r"])
            * int(settings["block_c"])
            / (int(settings["warps"]) * device.warp_size)
        )
        return (
            site.bytes / device.dram_bytes_per_s * 1e3 * (1.0 if per_thread >= 8 else 1.1)
            + 3 * device.launch_ms
        )

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Scaling = site.detail
        rows, columns = detail.out.shape
        step = detail.vector.stride[0]
        v_row, v_column = (step, 0) if detail.on_rows else (0, step)
        # A line of the second kernel is what the product sums over: a column of diag(v) @ B, a row
        # of A @ diag(v).
        along = -1 if detail.on_rows else 1
        lines, length = detail.out.shape[::along]
        x_line, x_step = detail.matrix.stride[::along]
        out_line, out_step = detail.out.stride[::along]
        block_r, block_c = int(settings["block_r"]), int(settings["block_c"])
        launcher = (
            "def launch(vector, matrix):\n"
            f"    out = torch.empty_strided({detail.out.shape!r}, {detail.out.stride!r}, "
            f"dtype=matrix.dtype, device=matrix.device)\n"
            f"    counts = torch.zeros({lines}, dtype=torch.int32, device=matrix.device)\n"
            f"    kmem_scale_lines[({ceil_div(rows, block_r) * ceil_div(columns, block_c)},)]("
            f"vector, matrix, counts, out, ROWS={rows}, COLUMNS={columns}, "
            f"V_ROW={v_row}, V_COLUMN={v_column}, X_ROW={detail.matrix.stride[0]}, "
            f"X_COLUMN={detail.matrix.stride[1]}, "
            f"OUT_ROW={detail.out.stride[0]}, OUT_COLUMN={detail.out.stride[1]}, "
            f"BLOCK_R={block_r}, BLOCK_C={block_c}, num_warps={settings['warps']})\n"
            f"    kmem_spread_non_finite[({ceil_div(lines, _SPREAD_L)},)](matrix, counts, out, "
            f"LINES={lines}, LENGTH={length}, "
            f"X_LINE={x_line}, X_STEP={x_step}, OUT_LINE={out_line}, OUT_STEP={out_step}, "
            f"BLOCK_L={_SPREAD_L}, BLOCK_S={_SPREAD_S})\n"
            "    return out\n"
        )
        return Emission(_KERNELS, launcher)


RECIPE = DiagonalScaling()
