"""Transposed convolution by output phases, as Triton text.

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
from textwrap import dedent

from kmem.codegen.chains.chain import Chain
from kmem.codegen.convolutions.windows import Taps, WindowAxis, has_empty_rows, phase_taps
from kmem.codegen.text.definitions import Definition, define
from kmem.problem.sizes import next_power_of_two

from .empty_rows import write_fill
from .transposed import Transposed, staged_axis

FILL_TURN = 128  # programs; about as many as SMs, so that those of one SM differ
TAIL_LANES = 32
#: Columns of a line of text, and the indent of what _STORE stores.
_COLUMNS, _STORED_INDENT = 100, 12

#: Constants of the kernel.
SIZES = (
    *("CP", "COG", "COP", "COUT", "GROUPS", "SAMPLES", "PD", "PH", "PW", "OD", "OH", "OW"),
    *("LW", "ROW_BLOCKS", "BAND", "ROWS", "COLUMNS", "BLOCK_CO", "BLOCK_K"),
    *("VECTOR", "SKEW", "LOW_X", "LOW_W", "TF32", "WIDEN"),
)

_FILL_TURN = """
    if pid // {programs} % 2 == {turn}:
        {fill}({given})
"""

_POSITION = """
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
    kept = {kept}
    y_at = (
        y
        + (n * {channels} + group * COG).to(tl.int64) * (OD * OH * OW)
        + kept[:, None, None] * (OD * OH * OW)
    )
    bias_row = {bias}
    channel = (group * COG + co)[:, None, None]
    made = (kept < {limit})[:, None, None]
    nothing = {nothing}
    empty = tl.broadcast_to(nothing, ({made}, ROWS, COLUMNS))
"""

_BIAS = "tl.load(bias + group * COG + co, mask=co < COG, other=0.0).to(tl.float32)"
_NO_BIAS = "tl.zeros((BLOCK_CO,), tl.float32)"

# The first phases have the most rows; blocks past those of a later one have nothing to do.
# Positions past the lattice compute its last one again, which is never stored; a last band that
# would end past it begins sooner and stores a few rows twice. Where a phase has fewer rows than a
# band, as at small sizes, the band's others read staged zeros and are not stored.
_PART = """
    LD_{index}: tl.constexpr = (OD - {phase_d} + {sd} - 1) // {sd}
    LH_{index}: tl.constexpr = (OH - {phase_h} + {sh} - 1) // {sh}
    LB_{index}: tl.constexpr = (LH_{index} + BAND - 1) // BAND
    if part == {index} and row_block * ROWS < LD_{index} * LB_{index}:
        mr = tl.minimum(row_block * ROWS + place // COLUMNS, LD_{index} * LB_{index} - 1)
        LAST_{index}: tl.constexpr = LH_{index} - BAND if LH_{index} > BAND else 0
        mh = tl.minimum(mr % LB_{index} * BAND, LAST_{index})
        x_at = x_n + ((mr // LB_{index} * PH + mh) * PW + mw)[:, None] * CP
"""

_START = """
        acc_{b} = tl.zeros((ROWS * COLUMNS, BLOCK_CO), tl.float32)
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
            moved = (
                (({d.shift} - td * {d.shift_step}) * PH + {h.shift} - th * {h.shift_step}) * PW
                + {w.shift}
                - tw * {w.shift_step}
            )
            from_x = tl.max_contiguous(tl.multiple_of(moved * CP + k % CP, VECTOR), VECTOR)
            k_tap = (
                (({d.first} + td * {d.step}) * {kh} + {h.first} + th * {h.step}) * {kw}
                + {w.first}
                + tw * {w.step}
            )
            from_w = tl.max_contiguous(tl.multiple_of(k_tap * CP + k % CP, VECTOR), VECTOR)
            ok = None if {count} * CP % BLOCK_K == 0 else (k < {count} * CP)[None, :]
"""

_LOAD = """
            {name} = kmem_load_entry({at}[None, :], ok, WIDEN)
            low_{name} = (
                kmem_load_entry({at}[None, :] + {low}, ok, WIDEN)
                if {low} > 0
                else {name}
            )
"""

_MULTIPLY = """
            acc_{b} = kmem_multiply(
                tile_{row}, weight_{tap}, low_tile_{row}, low_weight_{tap}, acc_{b}, LOW_X, TF32
            )
"""

_RESULT = """
        {target}_{b} = tl.reshape(
            tl.trans({value}.to(y.dtype.element_ty)),
            ({made}, ROWS, COLUMNS),
        )
"""

_ROW = """
        oh = tl.minimum(r % LB_{index} * BAND, LAST_{index}) * {sh} + {at}
        row = ((r // LB_{index} * {sd} + {phase_d}) * OH * OW + oh * OW)[None, :, None]
        inside = (r < LD_{index} * LB_{index})[None, :, None]
        if LH_{index} < BAND:
            inside &= (oh < OH)[None, :, None]
"""

# What follows the last column with taps: columns of phases without any, and the rows up to the next
# with taps.
_STORE_TAIL = """
        if TAIL < {gap} * OW:
            if column_block == COLUMN_BLOCKS - 1:
                left = ((OH - oh) * OW)[None, :, None]
                for first in range(TAIL, {gap} * OW, {lanes}):
                    behind = first + tl.arange(0, {lanes})[None, None, :]
                    none = tl.broadcast_to(nothing, ({made}, ROWS, {lanes}))
                    beyond = inside & (behind < left) & (behind < {gap} * OW)
                    tl.store(
                        y_at + (row + behind),
                        {none},
                        mask=made & beyond,
                    )
"""

_STORE = """
        lane = tl.arange(0, COLUMNS * {lanes})[None, None, :]
        ow = {place}
        reached = {mask}
        whole = tl.reshape(
            {value},
            ({made}, ROWS, COLUMNS * {lanes}),
        )
        tl.store(y_at + (row + ow), {whole}, mask=made & reached)
"""


@dataclass(frozen=True, slots=True)
class _Phase:
    """The output positions of one phase of depth or height, and the taps that reach them."""

    index: int
    taps: Taps


def write_phase_kernel(detail: Transposed) -> list[Definition]:
    """The functions for one structure, the kernel last.

    A program computes a band of lattice rows of each. The text is the same at every size. The
    kernel's pointers are x and w (staged and packed by operands.py), y, bias if there is one, and
    what the chain reads.
    """
    axes, chain = detail.axes, detail.chain
    depth, height = axes[:2]
    width = axes[2]
    by_depth, by_height = tapped_phases(depth), tapped_phases(height)
    parts = list(product(by_depth, by_height))
    fills = has_empty_rows(axes)
    fill = [write_fill(depth, height, chain, has_bias=detail.has_bias)] if fills else []
    # Programs that meet on one SM fill at different times, so that some multiply while others
    # write.
    early, late = ("".join(_write_fill_turn(turn, each) for each in fill) for turn in (0, 1))
    body = early + _cut(
        _POSITION,
        parts=len(parts),
        bias=_BIAS if detail.has_bias else _NO_BIAS,
        taps=prod(axis.kernel for axis in axes),
        sw=width.stride,
        **_write_kept(chain),
    )
    gaps = _gaps(by_height, height.stride)
    for index, (at_depth, at_height) in enumerate(parts):
        strides = {"index": index, "phase_d": at_depth.index, "sd": depth.stride}
        strides |= {"phase_h": at_height.index, "sh": height.stride}
        body += _cut(_PART, **strides)
        names = []
        for place, taps in enumerate(phase_taps(width)):
            names.append(f"phase_{place}" if taps.count else "")
            if taps.count:
                window = (at_depth.taps, at_height.taps, taps)
                body += _write_product(names[-1], detail, window)
        gap = gaps[at_height.index]
        for b in range(detail.band):
            body += _cut(_ROW, at=b * height.stride + at_height.index, **strides)
            none = _write_stored(chain, "none", "row + behind", "beyond")
            tail = {"gap": gap, "lanes": TAIL_LANES, "made": _made(chain)}
            body += _cut(_STORE_TAIL, none=none, **tail)
            body += _write_row([f"{name}_{b}" if name else "empty" for name in names], chain)
    lines = ["pid = tl.program_id(0)", *dedent(body + late).splitlines()]
    pointers, says = ["x", "w", "y", *detail.pointers], "A block of the lattice in all phases."
    return [*fill, define("kmem_phases", pointers, SIZES, lines, says)]


def _cut(template: str, **values: object) -> str:
    """A template with its values, without the line break that it begins with."""
    return template.removeprefix("\n").format(**values)


def tapped_phases(axis: WindowAxis) -> list[_Phase]:
    """The phases of an axis that have taps."""
    return [_Phase(phase, taps) for phase, taps in enumerate(phase_taps(axis)) if taps.count]


def _gaps(phases: Sequence[_Phase], stride: int) -> dict[int, int]:
    """Phase with taps -> rows from its own to the next with taps."""
    places = [phase.index for phase in phases]
    return {
        place: after - place
        for place, after in zip(places, [*places[1:], places[0] + stride], strict=True)
    }


def _made(chain: Chain) -> str:
    """Channels of a tile of results."""
    return "1" if chain.leaves_row else "BLOCK_CO"


def _write_kept(chain: Chain) -> dict[str, str]:
    """Which channels are stored, and what is stored where no tap reaches."""
    nothing = "bias_row.to(y.dtype.element_ty)[:, None, None]"
    if chain.reduces:
        closed = _write_closed(chain, "bias_row[None, :]")
        nothing = f"tl.trans({closed}.to(y.dtype.element_ty))[:, :, None]"
    kept = {"kept": "co", "channels": "COUT", "limit": "COG"}
    if chain.leaves_row:
        kept = {"kept": "tl.arange(0, 1)", "channels": "1", "limit": "1"}
    return {**kept, "nothing": nothing, "made": _made(chain)}


def _write_closed(chain: Chain, value: str) -> str:
    """A tile (positions, channels) after a chain that reduces it."""
    return chain.call(value, "n, co[None, :], (co < COG)[None, :], 0, True")


def _write_stored(chain: Chain, value: str, place: str, reached: str) -> str:
    """A tile of results as it is stored: after a chain that does not reduce it.

    Args:
        place: the offsets of its positions in a row.
        reached: the mask of those that exist, a name of its own for each shape: Triton's loops
            carry names from one turn to the next.
    """
    if not chain.name or chain.reduces:
        return value
    return f"{chain.call(value, f'n, channel, made, {place}, {reached}')}.to(y.dtype.element_ty)"


def _write_fill_turn(turn: int, fill: Definition) -> str:
    """Half of the programs fill their share of the rows without taps."""
    given = ", ".join([*fill.pointers, *fill.constants])
    return _cut(_FILL_TURN, programs=FILL_TURN, turn=turn, fill=fill.name, given=given)


def _write_product(target: str, detail: Transposed, window: tuple[Taps, Taps, Taps]) -> str:
    """Sum the products of a phase into `target`_0, `target`_1, ...

    There is one result for each lattice row of a band.

    In a band an input row is read once for all rows that it reaches, and the taps along height are
    unrolled.
    """
    axes, band = detail.axes, detail.band
    kh, kw = axes[1].kernel, axes[2].kernel
    d, h = (_from_staged(taps, axis) for taps, axis in zip(window[:2], axes[:2], strict=True))
    w = _from_staged(window[2], axes[2])
    if band == 1:  # a step's taps may be any of the window's
        stepped, tap_offsets = h, [0]
        reads = {(0, 0): 0}
    else:
        stepped = Taps(1)
        tap_offsets = [(h.first + tap * h.step) * kw for tap in range(h.count)]
        reads = {
            (b, tap): b + h.shift - tap * h.shift_step
            for tap in range(h.count)
            for b in range(band)
        }
    text = "".join(_cut(_START, b=b) for b in range(band))
    text += _cut(
        _STEP,
        count=d.count * stepped.count * w.count,
        hw=stepped.count * w.count,
        d=d,
        h=stepped,
        w=w,
        kh=kh,
        kw=kw,
    )
    for row in sorted(set(reads.values())):
        at = f"(x_at + {row} * (PW * CP)) + from_x"
        text += _cut(_LOAD, name=f"tile_{row}", at=at, low="LOW_X")
    for tap, offset in enumerate(tap_offsets):
        at = f"(w_at + {offset} * CP) + from_w"
        text += _cut(_LOAD, name=f"weight_{tap}", at=at, low="LOW_W")
    for tap in range(len(tap_offsets)):  # neighbours in this order are sums of their own
        text += "".join(_cut(_MULTIPLY, b=b, row=reads[b, tap], tap=tap) for b in range(band))
    for b in range(band):
        value = f"(acc_{b} + bias_row[None, :])"
        value = _write_closed(detail.chain, value) if detail.chain.reduces else value
        text += _cut(_RESULT, target=target, b=b, value=value, made=_made(detail.chain))
    return text


def _from_staged(taps: Taps, axis: WindowAxis) -> Taps:
    """The taps with shifts counted in staged positions."""
    first, _ = staged_axis(axis)
    return Taps(taps.count, taps.first, taps.step, taps.shift - first, taps.shift_step)


def _write_row(names: Sequence[str], chain: Chain) -> str:
    """Store the phases along a row interleaved.

    A stride that is no power of two leaves the last lanes of every position masked off.

    Positions and lanes are one dimension there too: in two, Triton 3.6 would give a warp a few
    lanes of each of four channels to store.
    """
    count = len(names)
    lanes = next_power_of_two(count)
    value = _interleave([*names, *["empty"] * (lanes - count)], _STORED_INDENT)
    place, mask = f"column_block * (COLUMNS * {lanes}) + lane", "inside & (ow < OW)"
    if lanes > count:
        place = f"(column_block * COLUMNS + lane // {lanes}) * {count} + lane % {lanes}"
        mask += f" & (lane % {lanes} < {count})"
    whole, made = _write_stored(chain, "whole", "row + ow", "reached"), _made(chain)
    return _cut(_STORE, lanes=lanes, place=place, value=value, mask=mask, whole=whole, made=made)


def _interleave(names: Sequence[str], indent: int) -> str:
    """The values as one whose lanes alternate between them, laid out at this indent."""
    if len(names) == 1:
        return names[0]
    halves = (names[0::2], names[1::2])
    line = f"tl.join({', '.join(_interleave(half, 0) for half in halves)})"
    if indent + len(line) < _COLUMNS:
        return line
    step = " " * (indent + 4)
    inner = "".join(f"{step}{_interleave(half, indent + 4)},\n" for half in halves)
    return f"tl.join(\n{inner}{' ' * indent})"
