"""Filling the rows of a transposed convolution that no tap reaches, as Triton text.

phases.py calls it.

Rows without taps that follow a row with taps are written with it. What is left are runs within a
plane of the output: all of it if no tap reaches its depth, else the rows before the first with
taps.
"""

from kmem.codegen.chains.chain import Chain
from kmem.codegen.convolutions.windows import WindowAxis, phase_taps
from kmem.codegen.text.definitions import Definition, define

FILL_BLOCK = 256  # vectors at once

FILL_RUN = (
    "kmem_fill_run",
    '''
@triton.jit
def kmem_fill_run(y, start, length, value, VECTOR: tl.constexpr, BLOCK: tl.constexpr):
    """The `length` outputs from `start` on to one value: whole vectors where they are aligned,
    single outputs before and after.
    """
    aligned = start // VECTOR * VECTOR
    skipped = (start - aligned).to(tl.int32)
    end = skipped + length
    first = (skipped + VECTOR - 1) // VECTOR
    last = tl.maximum(end // VECTOR, first)
    lane = tl.arange(0, VECTOR)
    values = tl.zeros((VECTOR,), y.dtype.element_ty) + value
    tl.store(y + start + lane, values, mask=lane < tl.minimum(length, first * VECTOR - skipped))
    for vector in range(first, end // VECTOR, BLOCK):
        at = vector + tl.arange(0, BLOCK)
        whole = tl.broadcast_to(values[None, :], (BLOCK, VECTOR))
        tl.store(
            y + aligned + (at * VECTOR)[:, None] + lane[None, :],
            whole,
            mask=(at < end // VECTOR)[:, None],
        )
    tl.store(y + aligned + last * VECTOR + lane, values, mask=last * VECTOR + lane < end)
''',
)

#: Constants of what fills, by which the kernel around it calls them, too.
_SIZES = ("SAMPLES", "COUT", "OD", "OH", "OW", "VECTOR")


def write_fill(
    depth: WindowAxis, height: WindowAxis, chain: Chain, *, has_bias: bool
) -> Definition:
    """The function by which every program fills its share of the planes (samples, COUT, OD).

    It writes runs of rows by FILL_RUN: rows without taps, but for those that follow a row with
    taps. The chain is one that knows no places: a run has one value.
    """
    tapped = [phase for phase, taps in enumerate(phase_taps(depth)) if taps.count]
    has_taps = " | ".join(f"(phase == {phase})" for phase in tapped)
    lead = min(phase for phase, taps in enumerate(phase_taps(height)) if taps.count)
    value = chain.call("value", "plane // (OD * COUT), channel, plane >= 0, 0, plane >= 0")
    lines = [
        "share = (SAMPLES * COUT * OD + tl.num_programs(0) - 1) // tl.num_programs(0)",
        "first = tl.program_id(0) * share",
        "for step in range(tl.minimum(share, SAMPLES * COUT * OD - first)):",
        "    plane = first + step",
        f"    phase = plane % OD % {depth.stride}",
        f"    length = tl.where({has_taps}, {lead} * OW if {lead} < OH else OH * OW, OH * OW)",
        "    channel = plane // OD % COUT",
        "    value = "
        + ("tl.load(bias + channel)" if has_bias else "(plane * 0).to(y.dtype.element_ty)"),
        f"    value = ({value}).to(y.dtype.element_ty)",
        "    start = plane.to(tl.int64) * (OH * OW)",
        f"    kmem_fill_run(y, start, length, value, VECTOR, {FILL_BLOCK})",
    ]
    says = "This program's share of the rows that no tap reaches."
    return define("kmem_fill", ["y", "bias", *chain.pointers], _SIZES, lines, says)
