"""Filling the rows of a transposed convolution that no tap reaches, as Triton text.

phases.py calls it.

Rows without taps that follow a row with taps are written with it. What is left are runs within a
plane of the output: all of it if no tap reaches its depth, else the rows before the first with
taps.
"""

from kmem.codegen.chain import Chain
from kmem.codegen.windows import WindowAxis, phase_taps
from kmem.records import content_hash

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

_FILL = '''
@triton.jit
def {name}(
    y, bias,{pointers}
    SAMPLES: tl.constexpr, COUT: tl.constexpr,
    OD: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    HAS_BIAS: tl.constexpr, VECTOR: tl.constexpr,
):
    """This program's share of the planes (samples, COUT, OD): their rows without taps, but for
    those that follow a row with taps.
    """
    share = (SAMPLES * COUT * OD + tl.num_programs(0) - 1) // tl.num_programs(0)
    first = tl.program_id(0) * share
    for step in range(tl.minimum(share, SAMPLES * COUT * OD - first)):
        plane = first + step
        phase = plane % OD % {sd}
        length = tl.where({has_taps}, {lead} * OW if {lead} < OH else OH * OW, OH * OW)
        channel = plane // OD % COUT
        value = (plane * 0).to(y.dtype.element_ty)
        if HAS_BIAS:
            value = tl.load(bias + channel)
        value = ({value}).to(y.dtype.element_ty)
        kmem_fill_run(y, plane.to(tl.int64) * (OH * OW), length, value, VECTOR, {block})
'''


def write_fill(depth: WindowAxis, height: WindowAxis, chain: Chain) -> tuple[str, str]:
    """(name, source) of the device function by which every program fills its share.

    It writes runs of rows by FILL_RUN. The chain is one that knows no places: a run has one value.
    """
    tapped = [phase for phase, taps in enumerate(phase_taps(depth)) if taps.count]
    structure = {
        "sd": depth.stride,
        "has_taps": " | ".join(f"(phase == {phase})" for phase in tapped),
        "lead": min(phase for phase, taps in enumerate(phase_taps(height)) if taps.count),
        "block": FILL_BLOCK,
        "pointers": "".join(f" {name}," for name in chain.pointers),
        "value": chain.call("value", "plane // (OD * COUT), channel, plane >= 0, 0, plane >= 0"),
    }
    nameless = _FILL.format(name="", **structure)
    name = f"kmem_fill_{content_hash(nameless)[:10]}"
    return name, _FILL.format(name=name, **structure).strip()
