"""Layer norm over the rows of an image, done on a tile that holds them whole.

A row of a power of two of columns fits tiles of whole rows, and of whole windows of a pooling that
follows. So neither the tensor that the norm reads nor, before a pooling, the one that it makes is
written.
"""

from math import prod

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.table import find_operator

from .vendor import Found, Lines, VendorConv

LAYER_NORM = "aten.layer_norm.default"
#: Columns of a row: so many channels of it as fill sectors still fit a tile.
_FEWEST, _MOST = 8, 128
#: Stand in a statement for the window of the tile, which a pooling that is found later decides.
_ROWS, _COLUMNS = "LINE_ROWS", "LINE_COLUMNS"

NORM_LINES = (
    "kmem_norm_lines",
    '''
@triton.jit
def kmem_norm_lines(
    values, EPS: tl.constexpr, LENGTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Every row of LENGTH columns of an image less its mean, over its deviation: by channel, row
    and column of a window, row of windows, and window.

    The columns of a tile are those of windows of ROWS x COLUMNS, apart: see kmem_nhwc_columns.
    """
    runs: tl.constexpr = values.shape[1] // (LENGTH * ROWS)
    shape: tl.constexpr = (values.shape[0], ROWS, COLUMNS, runs, LENGTH // COLUMNS)
    lines = tl.reshape(values, shape)
    mean = tl.sum(tl.sum(lines, axis=2), axis=3) * (1.0 / LENGTH)
    lines -= mean[:, :, None, :, None]
    variance = tl.sum(tl.sum(lines * lines, axis=2), axis=3) * (1.0 / LENGTH)
    return lines * (1.0 / tl.sqrt(variance + EPS))[:, :, None, :, None]
''',
)

LOAD_LINE = (
    "kmem_load_line",
    '''
@triton.jit
def kmem_load_line(
    operand, LENGTH: tl.constexpr, COLUMNS: tl.constexpr
):
    """What an operand has for each column of a row, as kmem_norm_lines has the columns."""
    place = tl.arange(0, LENGTH // COLUMNS)[None, :] * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    return tl.load(operand + place).to(tl.float32)[None, None, :, None, :]
''',
)


def read_lines(graph: OpGraph, norm: Node, found: Found) -> Lines | None:
    """The layer norm of what was found, if a tile can hold its rows; None otherwise."""
    detail = found.detail
    base = detail.base
    is_plain = detail.statistics is None and detail.lines is None and not base.is_closed
    if norm.target != LAYER_NORM or not is_plain or base.window != (1, 1, 1):
        return None
    call = find_operator(norm.target).call(graph, norm)
    shape, length = graph.spec(found.result).shape, base.axes[2].out
    sizes = call["normalized_shape"]
    if call.value("x") != found.result or norm.spec.dtype != graph.spec(found.result).dtype:
        return None
    if tuple(sizes) != (length,) or shape[-1] != length or length & (length - 1):
        return None
    roles = [role for role in ("weight", "bias") if call.value(role) is not None]
    specs = [call.spec(role) for role in roles]
    is_read = all(spec.dtype in FLOATS and spec.is_contiguous for spec in specs)
    if not _FEWEST <= length <= _MOST or not is_read:
        return None
    parameters = tuple((role, call.value(role)) for role in roles)
    return Lines(length, float(call["eps"]), parameters)


def write_lines(lines: Lines, read: str, first: int) -> list[tuple[str, str]]:
    """The statements of the norm of a value.

    Args:
        read: what is normed.
        first: the place of the first parameter among the operands.
    """
    text = f"kmem_norm_lines({read}, {lines.eps!r}, {lines.length}, {_ROWS}, {_COLUMNS})"
    statements = []
    for place, (role, _) in enumerate(lines.parameters, first):
        loaded = f"kmem_load_line(extra[{place}], {lines.length}, {_COLUMNS})"
        statements.append((role, loaded))
        text += f" {'*' if role == 'weight' else '+'} {role}"
    return [*statements, ("normed", f"tl.reshape({text}, acc.shape)")]


def in_windows(
    detail: VendorConv, statements: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    """Statements for the window that the tile has in the end."""
    width = detail.base.window[2]
    rows = prod(detail.base.window) // width
    return [
        (name, text.replace(_ROWS, str(rows)).replace(_COLUMNS, str(width)))
        for name, text in statements
    ]


def line_columns(detail: VendorConv) -> int:
    """Columns of a tile that holds whole rows; 1 where any do."""
    if detail.lines is None:
        return 1
    depth, height = detail.base.window[:2]
    return detail.lines.length * depth * height
