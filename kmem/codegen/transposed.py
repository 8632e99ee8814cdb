"""Transposed convolution by output phases, written as Triton text.

Output position o gets input i through tap k where o = i * stride - padding + k * dilation. With o = stride * m + phase, the taps of a
phase are those with (phase + padding - k * dilation) divisible by the stride, and i = m + that quotient: every phase is a dense convolution
over the lattice of m, with its own few taps, and a phase without taps is a structural zero that only receives the bias.

Three launches: the input is staged channels-last with a border of zeros (so the products load whole vectors without masks), the weights
are packed with the contraction innermost, and the products run as implicit GEMMs, (positions x taps * channels) by
(taps * channels x output channels). A program computes all phases along the row for a block of lattice rows and columns and interleaves
them in registers, so that whole output rows are written in order, zeros included. Where whole rows have no taps a fourth launch fills the
output first: it writes whole vectors, which rows of any length cannot, and repeats only the rows that have taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from kmem.codegen.windows import Axis, Taps, has_empty_rows, lattice_size, next_power, phase_taps
from kmem.records import DTYPE_BYTES, content_hash

VECTOR_BYTES = 16  # widest asynchronous copy of one thread. Source: PTX ISA, cp.async


@dataclass(frozen=True, slots=True)
class Tile:
    """One program: `rows` x `columns` lattice positions by `channels` output channels, `depth` products of the contraction per step.

    `copy_bytes` 16 moves operands through L2 only, 8 through L1 too, where the taps of a tile meet again.
    Source: PTX ISA, cp.async (.cg caches in L2 and takes 16 bytes; .ca caches at all levels).
    """

    rows: int
    columns: int
    channels: int
    depth: int
    copy_bytes: int

    @property
    def positions(self) -> int:
        return self.rows * self.columns


def staged_axis(axis: Axis) -> tuple[int, int]:
    """(first input position, count) that the phases of an axis read; positions outside the input are staged as zeros."""
    used = [taps for taps in phase_taps(axis) if taps.count]
    first = min(taps.shift - (taps.count - 1) * taps.shift_step for taps in used)
    return first, lattice_size(axis) - first + max(taps.shift for taps in used)


def staged_channels(channels: int, dtype: str) -> int:
    """Channels of one group padded to whole vectors."""
    vector = VECTOR_BYTES // DTYPE_BYTES[dtype]
    return -(-channels // vector) * vector


def staged_size(axes: Sequence[Axis], channels: int, dtype: str) -> int:
    """Elements of one group of one sample of the staged input."""
    return prod(staged_axis(axis)[1] for axis in axes) * staged_channels(channels, dtype)


STORE_PARTS = (
    "kmem_store_parts",
    '''
@triton.jit
def kmem_round_tf32(value):
    """Round fp32 to the nearest TF32, as cuDNN does; tl.dot would cut the low 13 bits off. NaN stays NaN whatever its payload."""
    rounded = ((value.to(tl.int32, bitcast=True) + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(value == value, rounded, value)


@triton.jit
def kmem_store_parts(where, value, mask, ROUND: tl.constexpr, LOW: tl.constexpr):
    """Store fp32 rounded to TF32, and if LOW > 0 the rest, rounded too, LOW elements further: together 22 bits of the value."""
    if ROUND:
        high = kmem_round_tf32(value)
        tl.store(where, high, mask=mask)
        if LOW > 0:
            rest = value - high
            tl.store(where + LOW, tl.where(rest == rest, kmem_round_tf32(rest), 0.0), mask=mask)
    else:
        tl.store(where, value, mask=mask)
''',
)

STAGE_INPUT = (
    "kmem_stage_input",
    '''
@triton.jit
def kmem_stage_input(
    x, staged, C: tl.constexpr, CP: tl.constexpr, D: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, D0: tl.constexpr, H0: tl.constexpr, W0: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_W: tl.constexpr,
):
    """(planes, C, D, H, W) to (planes, PD, PH, PW, CP): staged (0, 0, 0) is input (D0, H0, W0), zero outside the input and above C."""
    BLOCKS: tl.constexpr = (PW + BLOCK_W - 1) // BLOCK_W
    pid = tl.program_id(0)
    column = pid % BLOCKS * BLOCK_W + tl.arange(0, BLOCK_W)
    row = pid // BLOCKS % (PD * PH)
    plane = (pid // (BLOCKS * PD * PH)).to(tl.int64)
    d = row // PH + D0
    h = row % PH + H0
    w = column + W0
    end = tl.where((d >= 0) & (d < D) & (h >= 0) & (h < H), W, 0)  # a row outside the input ends before it begins
    inside = (w >= 0) & (w < end)
    source = x + plane * (C * D * H * W) + (d * H + h) * W
    target = staged + SKEW + plane * (PD * PH * PW * CP) + row * (PW * CP)
    for first in range(0, CP, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        value = tl.load(source + c[:, None] * (D * H * W) + w[None, :], mask=(c < C)[:, None] & inside[None, :], other=0.0)
        mask = (column < PW)[:, None] & (c < CP)[None, :]
        kmem_store_parts(target + column[:, None] * CP + c[None, :], tl.trans(value), mask, ROUND, LOW)
''',
)

PACK_WEIGHT = (
    "kmem_pack_transposed_weight",
    '''
@triton.jit
def kmem_pack_transposed_weight(
    w, packed, C: tl.constexpr, CP: tl.constexpr, COG: tl.constexpr, COP: tl.constexpr, TAPS: tl.constexpr, SIZE: tl.constexpr,
    SKEW: tl.constexpr, ROUND: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):
    """(groups * C, COG, TAPS) to (groups, COP, TAPS, CP), zero above C and COG: a row is one output channel's whole contraction."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = place % CP
    tap = place // CP % TAPS
    co = place // (CP * TAPS) % COP
    group = place // (CP * TAPS * COP)
    source = w + ((group * C + c) * COG + co) * TAPS + tap
    value = tl.load(source, mask=(place < SIZE) & (c < C) & (co < COG), other=0.0)
    kmem_store_parts(packed + SKEW + place, value, place < SIZE, ROUND, LOW)
''',
)

FILL_OUTPUT = (
    "kmem_fill_channels",
    '''
@triton.jit
def kmem_fill_channels(
    y, bias, SIZE: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """Every output of (samples, CHANNELS, POSITIONS) to the bias of its channel, or to zero."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK)
    value = tl.zeros((BLOCK,), y.dtype.element_ty)
    if HAS_BIAS:
        channel = (first // POSITIONS % CHANNELS).to(tl.int32) + ((first % POSITIONS).to(tl.int32) + place) // POSITIONS
        value = tl.load(bias + channel % CHANNELS)
    tl.store(y + first + place, value, mask=first + place < SIZE)
''',
)
FILL_BLOCK = 4096  # elements; 32 a thread

_PROLOGUE = """
    # the first phases of depth and height have the most rows; blocks past those of a later phase have nothing to do
    ROW_BLOCKS: tl.constexpr = ((OD + {sd} - 1) // {sd} * ((OH + {sh} - 1) // {sh}) + ROWS - 1) // ROWS
    COLUMN_BLOCKS: tl.constexpr = (LW + COLUMNS - 1) // COLUMNS
    pid = tl.program_id(0)
    part = pid % {parts}
    column_block = pid // {parts} % COLUMN_BLOCKS
    row_block = pid // ({parts} * COLUMN_BLOCKS) % ROW_BLOCKS
    rest = pid // ({parts} * COLUMN_BLOCKS * ROW_BLOCKS)
    group = rest // (COP // BLOCK_CO) % GROUPS
    n = rest // (COP // BLOCK_CO * GROUPS)
    co = rest % (COP // BLOCK_CO) * BLOCK_CO + tl.arange(0, BLOCK_CO)
    place = tl.arange(0, ROWS * COLUMNS)
    mw = tl.minimum(column_block * COLUMNS + place % COLUMNS, LW - 1)
    x_n = x + SKEW + (n * GROUPS + group).to(tl.int64) * (PD * PH * PW * CP)
    w_at = w + SKEW + (group * COP + co)[:, None] * ({taps} * CP)
    r = row_block * ROWS + tl.arange(0, ROWS)
    y_at = y + (n * COUT + group * COG).to(tl.int64) * (OD * OH * OW) + co[:, None, None] * (OD * OH * OW)
    bias_row = {bias}
    empty = tl.zeros((BLOCK_CO, ROWS, COLUMNS), y.dtype.element_ty) + bias_row.to(y.dtype.element_ty)[:, None, None]
"""

# Positions past the lattice compute its last one again, which is never stored.
_PART = """
    LD_{index}: tl.constexpr = (OD - {phase_d} + {sd} - 1) // {sd}
    LH_{index}: tl.constexpr = (OH - {phase_h} + {sh} - 1) // {sh}
    if part == {index} and row_block * ROWS < LD_{index} * LH_{index}:
        mr = tl.minimum(row_block * ROWS + place // COLUMNS, LD_{index} * LH_{index} - 1)
        x_at = x_n + ((mr // LH_{index} * PH + mr % LH_{index}) * PW + mw)[:, None] * CP
"""

_PRODUCT = """
        acc = tl.zeros((ROWS * COLUMNS, BLOCK_CO), tl.float32)
        for step in range(0, ({count} * CP + BLOCK_K - 1) // BLOCK_K):
            k = step * BLOCK_K + tl.arange(0, BLOCK_K)
            if CP % BLOCK_K == 0:
                tap = step * BLOCK_K // CP
            else:
                tap = k // CP
            td = tap // {hw}
            th = tap // {w.count} % {h.count}
            tw = tap % {w.count}
            moved = (({d.shift} - td * {d.shift_step}) * PH + {h.shift} - th * {h.shift_step}) * PW + {w.shift} - tw * {w.shift_step}
            from_x = tl.max_contiguous(tl.multiple_of(moved * CP + k % CP, VECTOR), VECTOR)
            k_tap = (({d.first} + td * {d.step}) * {kh} + {h.first} + th * {h.step}) * {kw} + {w.first} + tw * {w.step}
            from_w = tl.max_contiguous(tl.multiple_of(k_tap * CP + k % CP, VECTOR), VECTOR)
            ok = None if {count} * CP % BLOCK_K == 0 else (k < {count} * CP)[None, :]
            tile = tl.load(x_at + from_x[None, :], mask=ok, other=0.0 if ok is not None else None)
            weight = tl.load(w_at + from_w[None, :], mask=ok, other=0.0 if ok is not None else None)
            if WIDEN:
                tile, weight = tile.to(tl.float32), weight.to(tl.float32)
            if LOW_X > 0:
                low_tile = tl.load(x_at + LOW_X + from_x[None, :], mask=ok, other=0.0 if ok is not None else None)
                low_weight = tl.load(w_at + LOW_W + from_w[None, :], mask=ok, other=0.0 if ok is not None else None)
                # small terms first; a sum of its own for each step, because long sums inside a tensor core are cut, not rounded
                chunk = tl.dot(tile, tl.trans(low_weight), input_precision="tf32" if TF32 else "ieee")
                chunk = tl.dot(low_tile, tl.trans(weight), chunk, input_precision="tf32" if TF32 else "ieee")
                acc += tl.dot(tile, tl.trans(weight), chunk, input_precision="tf32" if TF32 else "ieee")
            else:
                acc = tl.dot(tile, tl.trans(weight), acc, input_precision="tf32" if TF32 else "ieee")
        {target} = tl.reshape(tl.trans((acc + bias_row[None, :]).to(y.dtype.element_ty)), (BLOCK_CO, ROWS, COLUMNS))
"""

_STORE = """
        row = (((r // LH_{index} * {sd} + {phase_d}) * OH + r % LH_{index} * {sh} + {phase_h}) * OW)[None, :, None]
        ok = (co < COG)[:, None, None] & (r < LD_{index} * LH_{index})[None, :, None]
"""

_STORE_TAIL = """
        if OW > LW * {sw} and column_block == COLUMN_BLOCKS - 1:  # columns after the last with taps: phases without any
            ow = LW * {sw} + tl.arange(0, {tail})[None, None, :]
            nothing = tl.broadcast_to(bias_row.to(y.dtype.element_ty)[:, None, None], (BLOCK_CO, ROWS, {tail}))
            tl.store(y_at + (row + ow), nothing, mask=ok & (ow < OW))
"""


def write_phase_kernel(axes: Sequence[Axis], *, has_bias: bool) -> tuple[str, str]:
    """(name, source) of the kernel for one structure.

    Arguments: x (staged by STAGE_INPUT), w (packed by PACK_WEIGHT), y, bias if there is one, then constexprs; see `write_phase_launcher`.
    """
    depth, height, width = axes
    strides = {"sd": depth.stride, "sh": height.stride}
    by_depth, by_height = ([(phase, taps) for phase, taps in enumerate(phase_taps(axis)) if taps.count] for axis in (depth, height))
    parts = list(product(by_depth, by_height))
    bias = "tl.load(bias + group * COG + co, mask=co < COG, other=0.0).to(tl.float32)" if has_bias else "tl.zeros((BLOCK_CO,), tl.float32)"
    taps = depth.kernel * height.kernel * width.kernel
    body = _PROLOGUE.format(parts=len(parts), bias=bias, taps=taps, **strides)
    first_d, first_h, first_w = (staged_axis(axis)[0] for axis in axes)
    for index, ((phase_d, d), (phase_h, h)) in enumerate(parts):
        body += _PART.format(index=index, phase_d=phase_d, phase_h=phase_h, **strides)
        names = []
        for phase_w, w in enumerate(phase_taps(width)):
            count = d.count * h.count * w.count
            if count == 0:
                names.append("empty")
                continue
            names.append(f"phase_{phase_w}")
            body += _PRODUCT.format(
                d=_from(d, first_d), h=_from(h, first_h), w=_from(w, first_w), hw=h.count * w.count, count=count,
                kh=height.kernel, kw=width.kernel, target=names[-1],
            )  # fmt: skip
        body += _STORE.format(index=index, phase_d=phase_d, phase_h=phase_h, **strides)
        if not has_empty_rows(axes):  # else the fill has written these columns
            body += _STORE_TAIL.format(sw=width.stride, tail=next_power(width.stride))
        body += _write_row(names)
    pointers = ["x", "w", "y"] + (["bias"] if has_bias else [])
    arguments = ", ".join(pointers + [f"{size}: tl.constexpr" for size in _SIZES])
    name = f"_phases_{content_hash(arguments, body)[:10]}"
    return name, f"@triton.jit\ndef {name}({arguments}):{body}"


_SIZES = (
    "CP", "COG", "COP", "COUT", "GROUPS", "PD", "PH", "PW", "OD", "OH", "OW", "LW", "ROWS", "COLUMNS", "BLOCK_CO", "BLOCK_K",
    "VECTOR", "SKEW", "LOW_X", "LOW_W", "TF32", "WIDEN",
)  # fmt: skip


def _from(taps: Taps, first: int) -> Taps:
    """The taps with shifts counted in staged positions."""
    return Taps(taps.count, taps.first, taps.step, taps.shift - first, taps.shift_step)


def _write_row(names: Sequence[str]) -> str:
    """Store the phases along a row interleaved; a stride that is no power of two leaves the last lanes masked off."""
    lanes = next_power(len(names))
    value = _interleave([*names, *["empty"] * (lanes - len(names))])
    if lanes == len(names):
        return (
            f"        ow = column_block * (COLUMNS * {lanes}) + tl.arange(0, COLUMNS * {lanes})[None, None, :]\n"
            f"        tl.store(y_at + (row + ow), tl.reshape({value}, (BLOCK_CO, ROWS, COLUMNS * {lanes})), mask=ok & (ow < OW))\n"
        )
    return (
        f"        lane = tl.arange(0, {lanes})[None, :]\n"
        f"        ow = ((column_block * COLUMNS + tl.arange(0, COLUMNS))[:, None] * {len(names)} + lane)[None, None, :, :]\n"
        f"        value = tl.reshape({value}, (BLOCK_CO, ROWS, COLUMNS, {lanes}))\n"
        f"        within = ok[:, :, :, None] & (ow < OW) & (lane < {len(names)})[None, None, :, :]\n"
        "        tl.store(y_at[:, :, :, None] + (row[:, :, :, None] + ow), value, mask=within)\n"
    )


def _interleave(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"tl.join({_interleave(names[0::2])}, {_interleave(names[1::2])})"


def write_phase_launcher(
    kernel: str,
    axes: Sequence[Axis],
    output: Sequence[int],
    *,
    dtype: str,
    channels_in: int,
    groups: int,
    has_bias: bool,
    tile: Tile,
    split: bool,
    warps: int,
    stages: int,
) -> str:
    """`launch(x, w[, bias])`: stage the input, pack the weights, fill the output if rows stay empty, then all phases.

    `split` keeps fp32 as two TF32 parts and sums three products. On the CPU (interpreter) other fp32 is not rounded, as eager's is not
    there, and half precision is widened for products, because the interpreter's tl.dot reads bfloat16 as integers.
    """
    depth, height, width = axes
    staged = [staged_axis(axis) for axis in axes]
    per_group_in, per_group_out = channels_in // groups, output[1] // groups
    padded_in, padded_out = staged_channels(per_group_in, dtype), -(-per_group_out // tile.channels) * tile.channels
    taps, planes = prod(axis.kernel for axis in axes), output[0] * groups
    vector = VECTOR_BYTES // DTYPE_BYTES[dtype]
    skew = 0 if tile.copy_bytes == VECTOR_BYTES else vector // 2
    size_x, size_w = planes * staged_size(axes, per_group_in, dtype), groups * padded_out * taps * padded_in
    low_x, low_w = (size_x, size_w) if split else (0, 0)
    block_w = min((64, 32, 128), key=lambda block: -(-staged[2][1] // block) * block)
    stage_grid = planes * staged[0][1] * staged[1][1] * -(-staged[2][1] // block_w)
    positions = (depth.size, height.size, width.size, *(count for _, count in staged), *(first for first, _ in staged))
    stage_sizes = ", ".join(map(str, (per_group_in, padded_in, *positions)))
    pack_sizes = ", ".join(map(str, (per_group_in, padded_in, per_group_out, padded_out, taps, size_w)))
    grid = prod(sum(taps.count > 0 for taps in phase_taps(axis)) for axis in (depth, height)) * -(-lattice_size(width) // tile.columns)
    grid *= -(-(-(-depth.out // depth.stride) * -(-height.out // height.stride)) // tile.rows) * (padded_out // tile.channels) * planes
    sizes = (
        padded_in, per_group_out, padded_out, output[1], groups, *(count for _, count in staged), depth.out, height.out, width.out,
        lattice_size(width), tile.rows, tile.columns, tile.channels, tile.depth, vector, skew, low_x, low_w,
    )  # fmt: skip
    pointers = "staged, packed, y" + (", bias" if has_bias else "")
    elements, fill = prod(output), ""
    if has_empty_rows(axes):
        fill = (
            f"    kmem_fill_channels[({-(-elements // FILL_BLOCK)},)](y, {'bias' if has_bias else 'y'}, SIZE={elements}, "
            f"CHANNELS={output[1]}, POSITIONS={elements // (output[0] * output[1])}, HAS_BIAS={has_bias}, BLOCK={FILL_BLOCK})\n"
        )
    return (
        f"def launch(x, w{', bias' if has_bias else ''}):\n"
        "    tf32 = x.dtype is torch.float32 and not x.is_cpu\n"
        f"    staged = torch.empty({skew + (2 if split else 1) * size_x}, dtype=x.dtype, device=x.device)\n"
        f"    packed = torch.empty({skew + (2 if split else 1) * size_w}, dtype=w.dtype, device=w.device)\n"
        f"    y = torch.empty({tuple(output)!r}, dtype=x.dtype, device=x.device)\n"
        f"    rounded = {'True' if split else 'tf32'}\n"
        f"    kmem_stage_input[({stage_grid},)](\n"
        f"        x, staged, {stage_sizes}, {skew}, rounded, {low_x}, {min(64, next_power(padded_in))}, {block_w}, num_warps=4\n"
        "    )\n"
        f"    kmem_pack_transposed_weight[({-(-size_w // 256)},)](w, packed, {pack_sizes}, {skew}, rounded, {low_w}, 256)\n"
        f"{fill}    {kernel}[({grid},)](\n"
        f"        {pointers}, {', '.join(map(str, sizes))}, tf32, x.is_cpu, num_warps={warps}, num_stages={stages}\n"
        "    )\n"
        "    return y\n"
    )
