"""Writes diag(v) @ B as the row scaling it is, and A @ diag(v) as column scaling."""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_call, write_launch, write_launch_function
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Operand, Recipe, Role, Settings, Site, Space
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
    vector, matrix, counts, out,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, V_ROW: tl.constexpr, V_COLUMN: tl.constexpr,
    X_ROW: tl.constexpr, X_COLUMN: tl.constexpr, OUT_ROW: tl.constexpr, OUT_COLUMN: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):
    """out[r, c] = vector[r or c] * matrix[r, c]; the step that does not apply is 0. Counts what is
    not finite along the summed axis.
    """
    blocks: tl.constexpr = (COLUMNS + BLOCK_C - 1) // BLOCK_C
    pid = tl.program_id(0)
    rows = ((pid // blocks) * BLOCK_R + tl.arange(0, BLOCK_R))[:, None].to(tl.int64)
    columns = ((pid % blocks) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :].to(tl.int64)
    inside = (rows < ROWS) & (columns < COLUMNS)
    scale = tl.load(vector + rows * V_ROW + columns * V_COLUMN, mask=inside, other=0.0)
    values = tl.load(
        matrix + rows * X_ROW + columns * X_COLUMN, mask=inside, other=0.0
    ).to(tl.float32)
    # From 0, as a matrix product sums: -0.0 becomes 0.0.
    product = scale.to(tl.float32) * values + 0.0
    tl.store(
        out + rows * OUT_ROW + columns * OUT_COLUMN, product.to(out.dtype.element_ty), mask=inside
    )
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
    matrix, counts, out,
    LINES: tl.constexpr, LENGTH: tl.constexpr, X_LINE: tl.constexpr, X_STEP: tl.constexpr,
    OUT_LINE: tl.constexpr, OUT_STEP: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr,
):
    """NaN where the dense product sums 0 * infinity or 0 * NaN: in every line with a non-finite
    element at another place of it.
    """
    lines = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    count = tl.load(counts + lines, mask=lines < LINES, other=0)
    if tl.max(count) > 0:
        for start in range(0, LENGTH, BLOCK_S):
            steps = (start + tl.arange(0, BLOCK_S)).to(tl.int64)[None, :]
            inside = (lines < LINES)[:, None] & (steps < LENGTH)
            values = tl.load(
                matrix + lines.to(tl.int64)[:, None] * X_LINE + steps * X_STEP,
                mask=inside,
                other=0.0,
            ).to(tl.float32)
            spread = count[:, None] > kmem_is_not_finite(values).to(tl.int32)
            wrong = tl.full((BLOCK_L, BLOCK_S), float("nan"), tl.float32).to(out.dtype.element_ty)
            tl.store(
                out + lines.to(tl.int64)[:, None] * OUT_LINE + steps * OUT_STEP,
                wrong,
                mask=inside & spread,
            )
''',
    ),
)
#: Lines and elements of a tile of the second kernel, which on finite input reads the counts alone.
_SPREAD_L, _SPREAD_S = 64, 64
#: Elements of a thread below which reading is slower, and how much.
_FEW_ELEMENTS, _SLOWER = 8, 1.1

_DIAGONALS = ("aten.diag.default", "aten.diag_embed.default")
_PRODUCTS = ("aten.mm.default", "aten.matmul.default")


@dataclass(frozen=True, slots=True)
class Scaling:
    """Which side the diagonal stands on, and the matrix and result."""

    on_rows: bool
    vector: TensorSpec
    matrix: TensorSpec
    out: TensorSpec


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """The knobs: rows and columns of a tile."""

    block_r: int
    block_c: int
    warps: int


class DiagonalScaling(Recipe):
    """A product with a diagonal matrix made from a vector in the graph.

    Results have the same bits as those of the dense product.
    """

    operators = ("diagonal_matmul",)
    roles = {
        "block_r": (Role("rows"),),
        "block_c": (Role("tile"),),
        "warps": (Role("warps"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = (_read(graph, node) for node in graph.nodes if node.target in _PRODUCTS)
        return [site for site in sites if site is not None]

    def space(self, site: Site, device: Device) -> Space:
        rows, columns = site.detail.out.shape
        most_r, most_c = next_power_of_two(rows), next_power_of_two(columns)
        knobs = {
            "block_r": tuple(sorted({min(value, most_r) for value in (1, 4)})),
            "block_c": tuple(sorted({min(value, most_c) for value in (512, 1024, 2048)})),
            "warps": (4, 8),
        }
        return Space(knobs)

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        knobs = read_settings(ScalingSettings, settings)
        per_thread = knobs.block_r * knobs.block_c / (knobs.warps * device.warp_size)
        slower = 1.0 if per_thread >= _FEW_ELEMENTS else _SLOWER
        return site.bytes / device.dram_bytes_per_s * 1e3 * slower + 3 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Scaling = site.detail
        out = detail.out
        (lines,) = out.shape[1:] if detail.on_rows else out.shape[:1]
        statements = [
            write_call(
                "out = torch.empty_strided",
                f"{out.shape!r}, {out.stride!r}",
                "dtype=matrix.dtype, device=matrix.device",
            ),
            f"counts = torch.zeros({lines}, dtype=torch.int32, device=matrix.device)",
            _write_scaling(detail, read_settings(ScalingSettings, settings)),
            _write_spreading(detail),
            "return out",
        ]
        return Emission(_KERNELS, write_launch_function(["vector", "matrix"], statements))


def _read(graph: OpGraph, node: Node) -> Site | None:
    """The site of a product with a diagonal matrix on either side; None if it has none."""
    if len(node.args) != 2 or node.spec.dtype not in FLOATS:
        return None
    for side in (0, 1):
        diagonal, matrix = graph.node(node.args[side].name), node.args[1 - side].name
        if diagonal is None or diagonal.target not in _DIAGONALS:
            continue
        if len(diagonal.args) != 1 or diagonal.kwargs:
            continue
        vector = diagonal.args[0].name
        if len(graph.spec(vector).shape) == 1 and len(graph.spec(matrix).shape) == 2:
            return _site(graph, node, diagonal, side)
    return None


def _site(graph: OpGraph, node: Node, diagonal: Node, side: int) -> Site:
    vector, matrix = diagonal.args[0].name, node.args[1 - side].name
    detail = Scaling(side == 0, graph.spec(vector), graph.spec(matrix), node.spec)
    # A diagonal that something else reads as well is still made, elsewhere.
    alone = graph.has_one_user(diagonal.name)
    return Site(
        name=node.name,
        operator="diagonal_matmul",
        nodes=(diagonal.name, node.name) if alone else (node.name,),
        inputs=(Operand(vector, detail.vector), Operand(matrix, detail.matrix)),
        outputs=(Operand(node.name, node.spec),),
        detail=detail,
        bytes=detail.vector.bytes + detail.matrix.bytes + detail.out.bytes,
        flops=float(node.spec.numel),
        flags=("algebraic",),
    )


def _write_scaling(detail: Scaling, knobs: ScalingSettings) -> str:
    """The launch that multiplies, and counts what is not finite."""
    rows, columns = detail.out.shape
    step = detail.vector.stride[0]
    v_row, v_column = (step, 0) if detail.on_rows else (0, step)
    return write_launch(
        "kmem_scale_lines",
        ceil_div(rows, knobs.block_r) * ceil_div(columns, knobs.block_c),
        "vector, matrix, counts, out",
        f"ROWS={rows}, COLUMNS={columns}, V_ROW={v_row}, V_COLUMN={v_column}",
        f"X_ROW={detail.matrix.stride[0]}, X_COLUMN={detail.matrix.stride[1]}, "
        f"OUT_ROW={detail.out.stride[0]}, OUT_COLUMN={detail.out.stride[1]}",
        f"BLOCK_R={knobs.block_r}, BLOCK_C={knobs.block_c}, num_warps={knobs.warps}",
    )


def _write_spreading(detail: Scaling) -> str:
    """The launch that gives NaN where the dense product would.

    A line is what the product sums over: a column of diag(v) @ B, a row of A @ diag(v).
    """
    along = -1 if detail.on_rows else 1
    lines, length = detail.out.shape[::along]
    x_line, x_step = detail.matrix.stride[::along]
    out_line, out_step = detail.out.stride[::along]
    return write_launch(
        "kmem_spread_non_finite",
        ceil_div(lines, _SPREAD_L),
        "matrix, counts, out",
        f"LINES={lines}, LENGTH={length}, X_LINE={x_line}, X_STEP={x_step}",
        f"OUT_LINE={out_line}, OUT_STEP={out_step}, BLOCK_L={_SPREAD_L}, BLOCK_S={_SPREAD_S}",
    )


RECIPE = DiagonalScaling()
