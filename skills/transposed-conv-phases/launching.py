"""The launches of a transposed convolution: its operands staged, then all phases."""

from kmem.codegen.convolutions.windows import lattice_size
from kmem.codegen.text.calls import write_launch_function
from kmem.codegen.text.definitions import Definition
from kmem.problem.sizes import ceil_div
from kmem.records import DTYPE_BYTES

from .operands import write_staging
from .phases import SIZES, tapped_phases
from .transposed import VECTOR_BYTES, PhaseSettings, Transposed, staged_channels


def write_phase_launcher(kernel: Definition, detail: Transposed, knobs: PhaseSettings) -> str:
    """`launch(x, w[, bias][, e0 ...])`: stage the input, pack the weights, then all phases.

    On the CPU (interpreter) half precision is widened for products, because the interpreter's
    tl.dot reads bfloat16 as integers.
    """
    parameters = ["x", "w", *detail.pointers]
    statements = [
        "tf32 = not x.is_cpu" if detail.dtype == "float32" else "tf32 = False",
        *write_staging(detail, knobs),
        _write_phases(kernel, detail, knobs),
        "return y",
    ]
    return write_launch_function(parameters, statements)


def _write_phases(kernel: Definition, detail: Transposed, knobs: PhaseSettings) -> str:
    """The launch that multiplies and stores."""
    depth, height = detail.axes[:2]
    columns = lattice_size(detail.axes[2])
    padded_out = detail.padded_outputs(knobs.block_co)
    rows = lattice_size(depth) * ceil_div(lattice_size(height), knobs.band)
    row_blocks = ceil_div(rows, knobs.rows)
    parts = len(tapped_phases(depth)) * len(tapped_phases(height))
    programs = parts * ceil_div(columns, knobs.columns) * row_blocks
    channels = (
        staged_channels(detail.group_in, detail.dtype),
        detail.group_out,
        padded_out,
        detail.output[1],
    )
    low = (0, 0)
    if knobs.is_split(detail.dtype):
        low = (detail.staged_size, detail.packed_size(knobs.block_co))
    sizes = (
        *(*channels, detail.groups, detail.output[0]),
        *(count for _, count in detail.staged_axes),
        *(axis.out for axis in detail.axes),
        *(columns, row_blocks, knobs.band, knobs.rows, knobs.columns),
        *(knobs.block_co, knobs.block_k, VECTOR_BYTES // DTYPE_BYTES[detail.dtype]),
        *(knobs.skew(detail.dtype), *low, "tf32", "x.is_cpu"),
    )
    values = {"x": "staged", "w": "packed", **dict(zip(SIZES, sizes, strict=True))}
    programs *= padded_out // knobs.block_co * detail.planes
    options = {"num_warps": knobs.warps, "num_stages": knobs.stages}
    return kernel.write_launch(str(programs), values, options)
