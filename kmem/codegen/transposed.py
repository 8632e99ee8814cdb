"""Transposed convolution by output phases, written as Triton text.

Output position o gets input i through tap k where o = i * stride - padding + k * dilation. With o =
stride * m + phase, the taps of a phase are those with (phase + padding - k * dilation) divisible by
the stride, and i = m + that quotient: every phase is a dense convolution over the lattice of m,
with its own few taps, and a phase without taps is a structural zero that only receives the bias.

Three launches: the input is staged channels-last with a border of zeros (so the products load whole
vectors without masks), the weights are packed with the contraction innermost, and the products run
as implicit GEMMs, (positions x taps * channels) by (taps * channels x output channels). A program
computes all phases along the row for a block of lattice rows and columns and interleaves them in
registers, so that whole output rows are written in order, zeros included, and the rows without taps
that follow. Planes without taps every program fills a share of (empty_rows.py), half of the
programs before their products and half after, so that writing hides multiplying.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from kmem.codegen.empty_rows import write_fill
from kmem.codegen.windows import Axis, Taps, has_empty_rows, lattice_size, phase_taps
from kmem.problem.sizes import next_power_of_two
from kmem.records import DTYPE_BYTES, content_hash

VECTOR_BYTES = 16  # widest asynchronous copy of one thread. Source: PTX ISA, cp.async


@dataclass(frozen=True, slots=True)
class Tile:
    """One program: `band` x `rows` x `columns` lattice positions by `channels` output channels,
    `depth` of the contraction per step.

    `rows` are multiplied at once; a band is lattice rows side by side along height that share what
    they read.

    `copy_bytes` 16 moves operands through L2 only, 8 through L1 too, where the taps of a tile meet
    again. Source: PTX ISA, cp.async (.cg caches in L2 and takes 16 bytes; .ca caches at all
    levels).
    """

    band: int
    rows: int
    columns: int
    channels: int
    depth: int
    copy_bytes: int

    @property
    def positions(self) -> int:
        return self.rows * self.columns


def staged_axis(axis: Axis) -> tuple[int, int]:
    """(first input position, count) that the phases of an axis read; positions outside the input
    are staged as zeros.
    """
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
    """Store fp32 rounded to TF32, and if LOW > 0 the rest, rounded too, LOW elements further: together 22 bits of the value.

    A value that is not finite goes into the rest alone: it then meets one product instead of two, which might cancel to NaN.
    """
    if ROUND and LOW > 0:
        high = kmem_round_tf32(value)
        rest = value - high
        finite = rest - rest == 0.0
        tl.store(where, tl.where(finite, high, 0.0), mask=mask)
        tl.store(where + LOW, tl.where(finite, kmem_round_tf32(rest), value), mask=mask)
    elif ROUND:
        tl.store(where, kmem_round_tf32(value), mask=mask)
    else:
        tl.store(where, value, mask=mask)
''',
)

FILL_TURN = 128  # programs; about as many as SMs, so that those of one SM differ
TAIL_LANES = 32

_PROLOGUE = """
    pid = tl.program_id(0){fill}
    COLUMN_BLOCKS: tl.constexpr = (LW + COLUMNS - 1) // COLUMNS
    TAIL: tl.constexpr = LW * {sw} if LW * {sw} < OW else OW
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

# The first phases have the most rows; blocks past those of a later one have nothing to do.
# Positions past the lattice compute its last one again, which is never stored; a last band that
# would end past it begins sooner and stores a few rows twice.
_PART = """
    LD_{index}: tl.constexpr = (OD - {phase_d} + {sd} - 1) // {sd}
    LH_{index}: tl.constexpr = (OH - {phase_h} + {sh} - 1) // {sh}
    LB_{index}: tl.constexpr = (LH_{index} + BAND - 1) // BAND
    if part == {index} and row_block * ROWS < LD_{index} * LB_{index}:
        mr = tl.minimum(row_block * ROWS + place // COLUMNS, LD_{index} * LB_{index} - 1)
        mh = tl.minimum(mr % LB_{index} * BAND, LH_{index} - BAND)
        x_at = x_n + ((mr // LB_{index} * PH + mh) * PW + mw)[:, None] * CP
"""

_STEP = """
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
"""

_LOAD = """
            {name} = kmem_load_operand({at}[None, :], ok, WIDEN)
            low_{name} = kmem_load_operand({at}[None, :] + {low}, ok, WIDEN) if {low} > 0 else {name}
"""
_MULTIPLY = """
            acc_{b} = kmem_multiply(tile_{row}, weight_{tap}, low_tile_{row}, low_weight_{tap}, acc_{b}, LOW_X, TF32)
"""
_RESULT = """
        {target}_{b} = tl.reshape(tl.trans((acc_{b} + bias_row[None, :]).to(y.dtype.element_ty)), (BLOCK_CO, ROWS, COLUMNS))
"""

_STORE = """
        oh = tl.minimum(r % LB_{index} * BAND, LH_{index} - BAND) * {sh} + {at}
        row = ((r // LB_{index} * {sd} + {phase_d}) * OH * OW + oh * OW)[None, :, None]
        ok = (co < COG)[:, None, None] & (r < LD_{index} * LB_{index})[None, :, None]
"""

# What follows the last column with taps: columns of phases without any, and the rows up to the next
# with taps.
_STORE_TAIL = """
        if column_block == COLUMN_BLOCKS - 1:
            left = ((OH - oh) * OW)[None, :, None]
            for first in range(TAIL, {gap} * OW, {lanes}):
                behind = first + tl.arange(0, {lanes})[None, None, :]
                nothing = tl.broadcast_to(bias_row.to(y.dtype.element_ty)[:, None, None], (BLOCK_CO, ROWS, {lanes}))
                tl.store(y_at + (row + behind), nothing, mask=ok & (behind < left) & (behind < {gap} * OW))
"""


def write_phase_kernel(axes: Sequence[Axis], *, has_bias: bool, band: int) -> tuple[str, str]:
    """(name, source) of the kernel for one structure; a program computes `band` lattice rows of
    each it has.

    Arguments: x (staged by STAGE_INPUT), w (packed by PACK_WEIGHT), y, bias if there is one, then
    constexprs; see `write_phase_launcher`.
    """
    depth, height, width = axes
    strides = {"sd": depth.stride, "sh": height.stride}
    by_depth, by_height = (
        [(phase, taps) for phase, taps in enumerate(phase_taps(axis)) if taps.count]
        for axis in (depth, height)
    )
    parts = list(product(by_depth, by_height))
    bias = (
        "tl.load(bias + group * COG + co, mask=co < COG, other=0.0).to(tl.float32)"
        if has_bias
        else "tl.zeros((BLOCK_CO,), tl.float32)"
    )
    taps = depth.kernel * height.kernel * width.kernel
    fill_name, fill_source = write_fill(depth, height)
    fill = (
        f"{fill_name}(y, {'bias' if has_bias else 'y'}, SAMPLES, COUT, OD, OH, OW, {has_bias}, "
        f"VECTOR)"
    )
    fills = has_empty_rows(axes)
    # programs that meet on one SM fill at different times, so that some multiply while others write
    early, late = (
        f"\n    if pid // {FILL_TURN} % 2 == {turn}:\n        {fill}" if fills else ""
        for turn in (0, 1)
    )
    body = _PROLOGUE.format(parts=len(parts), bias=bias, taps=taps, fill=early, sw=width.stride)
    first_d, first_h, first_w = (staged_axis(axis)[0] for axis in axes)
    rows_with_taps = [phase for phase, _ in by_height] + [by_height[0][0] + height.stride]
    for index, ((phase_d, d), (phase_h, h)) in enumerate(parts):
        body += _PART.format(index=index, phase_d=phase_d, phase_h=phase_h, **strides)
        names = []
        for phase_w, w in enumerate(phase_taps(width)):
            if w.count == 0:
                names.append("empty")
                continue
            names.append(f"phase_{phase_w}")
            body += _write_product(
                names[-1],
                _from(d, first_d),
                _from(h, first_h),
                _from(w, first_w),
                kernel=(height.kernel, width.kernel),
                band=band,
            )
        gap = next(row for row in rows_with_taps if row > phase_h) - phase_h
        for b in range(band):
            body += _STORE.format(
                index=index, phase_d=phase_d, at=b * height.stride + phase_h, **strides
            )
            if gap * width.out > lattice_size(width) * width.stride:
                body += _STORE_TAIL.format(gap=gap, lanes=TAIL_LANES)
            body += _write_row([name if name == "empty" else f"{name}_{b}" for name in names])
    body += late
    pointers = ["x", "w", "y"] + (["bias"] if has_bias else [])
    arguments = ", ".join(pointers + [f"{size}: tl.constexpr" for size in _SIZES])
    name = f"_phases_{content_hash(arguments, body)[:10]}"
    kernel = f"@triton.jit\ndef {name}({arguments}):{body}"
    return name, f"{fill_source}\n\n{kernel}" if fills else kernel


def _write_product(
    target: str, d: Taps, h: Taps, w: Taps, *, kernel: tuple[int, int], band: int
) -> str:
    """Sum the products of a phase into `target`_0, `target`_1, ...: one result for each lattice row
    of a band.

    In a band an input row is read once for all rows that it reaches, and the taps along height are
    unrolled.
    """
    kh, kw = kernel
    text = "".join(
        f"        acc_{b} = tl.zeros((ROWS * COLUMNS, BLOCK_CO), tl.float32)\n" for b in range(band)
    )
    if band == 1:
        text += _STEP.format(
            count=d.count * h.count * w.count, d=d, h=h, w=w, hw=h.count * w.count, kh=kh, kw=kw
        ).lstrip("\n")
        taps, reads = [0], {(0, 0): 0}
    else:
        text += _STEP.format(
            count=d.count * w.count, d=d, h=Taps(1), w=w, hw=w.count, kh=kh, kw=kw
        ).lstrip("\n")
        taps = list(range(h.count))
        reads = {
            (b, tap): b + h.shift - tap * h.shift_step
            for tap in range(h.count)
            for b in range(band)
        }
    for row in sorted(set(reads.values())):
        text += _LOAD.format(
            name=f"tile_{row}", at=f"(x_at + {row} * (PW * CP)) + from_x", low="LOW_X"
        ).lstrip("\n")
    for tap in taps:
        offset = 0 if band == 1 else (h.first + tap * h.step) * kw
        text += _LOAD.format(
            name=f"weight_{tap}", at=f"(w_at + {offset} * CP) + from_w", low="LOW_W"
        ).lstrip("\n")
    for tap in taps:  # neighbours in this order are sums of their own
        text += "".join(
            _MULTIPLY.format(b=b, row=reads[b, tap], tap=tap).lstrip("\n") for b in range(band)
        )
    return text + "".join(_RESULT.format(target=target, b=b).lstrip("\n") for b in range(band))


_SIZES = (
    "CP",
    "COG",
    "COP",
    "COUT",
    "GROUPS",
    "SAMPLES",
    "PD",
    "PH",
    "PW",
    "OD",
    "OH",
    "OW",
    "LW",
    "ROW_BLOCKS",
    "BAND",
    "ROWS",
    "COLUMNS",
    "BLOCK_CO",
    "BLOCK_K",
    "VECTOR",
    "SKEW",
    "LOW_X",
    "LOW_W",
    "TF32",
    "WIDEN",
)


def _from(taps: Taps, first: int) -> Taps:
    """The taps with shifts counted in staged positions."""
    return Taps(taps.count, taps.first, taps.step, taps.shift - first, taps.shift_step)


def _write_row(names: Sequence[str]) -> str:
    """Store the phases along a row interleaved; a stride that is no power of two leaves the last
    lanes of every position masked off.

    Positions and lanes are one dimension there too: in two, Triton 3.6 would give a warp a few
    lanes of each of four channels to store.
    """
    lanes = next_power_of_two(len(names))
    value = _interleave([*names, *["empty"] * (lanes - len(names))])
    place, mask = f"column_block * (COLUMNS * {lanes}) + lane", "ok & (ow < OW)"
    if lanes > len(names):
        place = f"(column_block * COLUMNS + lane // {lanes}) * {len(names)} + lane % {lanes}"
        mask += f" & (lane % {lanes} < {len(names)})"
    return (
        f"        lane = tl.arange(0, COLUMNS * {lanes})[None, None, :]\n"
        f"        ow = {place}\n"
        f"        tl.store(y_at + (row + ow), tl.reshape({value}, (BLOCK_CO, ROWS, COLUMNS * "
        f"{lanes})), mask={mask})\n"
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
    """`launch(x, w[, bias])`: stage the input, pack the weights, then all phases.

    `split` keeps fp32 as two TF32 parts and sums three products. On the CPU (interpreter) other
    fp32 is not rounded, as eager's is not there, and half precision is widened for products,
    because the interpreter's tl.dot reads bfloat16 as integers.
    """
    depth, height, width = axes
    staged = [staged_axis(axis) for axis in axes]
    per_group_in, per_group_out = channels_in // groups, output[1] // groups
    padded_in = staged_channels(per_group_in, dtype)
    padded_out = -(-per_group_out // tile.channels) * tile.channels
    taps, planes = prod(axis.kernel for axis in axes), output[0] * groups
    vector = VECTOR_BYTES // DTYPE_BYTES[dtype]
    skew = 0 if tile.copy_bytes == VECTOR_BYTES else vector // 2
    size_x = planes * staged_size(axes, per_group_in, dtype)
    size_w = groups * padded_out * taps * padded_in
    low_x, low_w = (size_x, size_w) if split else (0, 0)
    block_w = min((64, 32, 128), key=lambda block: -(-staged[2][1] // block) * block)
    stage_grid = planes * staged[0][1] * staged[1][1] * -(-staged[2][1] // block_w)
    positions = (
        depth.size,
        height.size,
        width.size,
        *(count for _, count in staged),
        *(first for first, _ in staged),
    )
    stage_sizes = ", ".join(map(str, (per_group_in, padded_in, *positions)))
    pack_sizes = ", ".join(
        map(str, (per_group_in, padded_in, per_group_out, padded_out, taps, size_w))
    )
    grid = prod(sum(taps.count > 0 for taps in phase_taps(axis)) for axis in (depth, height)) * -(
        -lattice_size(width) // tile.columns
    )
    row_blocks = -(-lattice_size(depth) * -(-lattice_size(height) // tile.band) // tile.rows)
    grid *= row_blocks * (padded_out // tile.channels) * planes
    sizes = (
        padded_in,
        per_group_out,
        padded_out,
        output[1],
        groups,
        output[0],
        *(count for _, count in staged),
        depth.out,
        height.out,
        width.out,
        lattice_size(width),
        row_blocks,
        tile.band,
        tile.rows,
        tile.columns,
        tile.channels,
        tile.depth,
        vector,
        skew,
        low_x,
        low_w,
    )
    pointers = "staged, packed, y" + (", bias" if has_bias else "")
    return (
        f"def launch(x, w{', bias' if has_bias else ''}):\n"
        "    tf32 = x.dtype is torch.float32 and not x.is_cpu\n"
        f"    staged = torch.empty({skew + (2 if split else 1) * size_x}, dtype=x.dtype, "
        f"device=x.device)\n"
        f"    packed = torch.empty({skew + (2 if split else 1) * size_w}, dtype=w.dtype, "
        f"device=w.device)\n"
        f"    y = torch.empty({tuple(output)!r}, dtype=x.dtype, device=x.device)\n"
        f"    rounded = {'True' if split else 'tf32'}\n"
        f"    kmem_stage_input[({stage_grid},)](\n"
        f"        x, staged, {stage_sizes}, {skew}, rounded, {low_x}, "
        f"{min(64, next_power_of_two(padded_in))}, {block_w}, num_warps=4\n"
        "    )\n"
        f"    kmem_pack_transposed_weight[({-(-size_w // 256)},)](w, packed, {pack_sizes}, {skew}, "
        f"rounded, {low_w}, 256)\n"
        f"    {kernel}[({grid},)](\n"
        f"        {pointers}, {', '.join(map(str, sizes))}, tf32, x.is_cpu, num_warps={warps}, "
        f"num_stages={stages}\n"
        "    )\n"
        "    return y\n"
    )
