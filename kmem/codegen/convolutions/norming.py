"""A batch norm in training mode behind a convolution, whose statistics its tiles leave.

The tile of a convolution that is stored anyway leaves a mean and a sum of squared deviations from
it for each of its channels; one small kernel makes of these what the norm multiplies by and adds,
and moves the running statistics along; a last one normalises, and does what follows element by
element. So what the convolution made is read once, where a norm by itself reads it twice.

Parts are combined as Chan, Golub and LeVeque do ("Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979): squares are only ever taken of deviations.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from kmem.codegen.chains.epilogue import LOAD_OPERAND, MAX_OPERANDS, grow_epilogue, write_epilogue
from kmem.codegen.chains.ports import AFTER_LOAD, hand_in, port_arguments
from kmem.codegen.convolutions.convolution import (
    Convolution,
    TrainedNorm,
    epilogue_steps,
    extend_sites,
)
from kmem.codegen.convolutions.launching import copy_ms, write_launcher
from kmem.codegen.steady import kept_operands
from kmem.codegen.text.calls import write_allocation, write_launch, write_launch_function
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.row import Reduction
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Operand, Site
from kmem.records import Device

_NORM = "aten.batch_norm.default"
_ROLES = ("weight", "bias", "running_mean", "running_var")
_MOVED = {"running_mean", "running_var"}
#: What the last kernel subtracts, multiplies by and adds.
_MOMENTS = 3
#: Of what tiles left, read at a time, and by one warp. The program of a channel waits for each such
#: read. Source: an H200's counters, 2026-11-30: 31,872 parts of a channel, 1,024 at a time by four
#: warps, took 73 us, of which memory was busy for a twentieth.
_RESULTS, _RESULTS_OF_WARP = 8192, 512
_MOST_WARPS = 16
#: Elements of a tile of the last kernel.
_APPLIED, _APPLIED_COLUMNS = 2048, 1024

LEAVE = (
    "kmem_leave_moments",
    '''
@triton.jit
def kmem_leave_moments(
    acc, batch, rows, columns, means, spreads, part,
    M: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
):
    """The tile as it is, number `part` along the columns; of each of its rows the mean over its
    columns and the sum of squared deviations from that are left at (images, channels, parts).
    """
    width: tl.constexpr = acc.shape[1]
    parts: tl.constexpr = (N + width - 1) // width
    inside = (columns < N)[None, :]
    count = tl.minimum(N - part * width, width).to(tl.float32)
    mean = tl.sum(tl.where(inside, acc, 0.0), axis=1) / count
    away = tl.where(inside, acc - mean[:, None], 0.0)
    place = (batch.to(tl.int64) * M + rows) * parts + part
    tl.store(means + place, mean, mask=rows < M)
    tl.store(spreads + place, tl.sum(away * away, axis=1), mask=rows < M)
    return acc
''',
)

FIND = (
    "kmem_find_parts",
    '''
@triton.jit
def kmem_find_parts(
    first, start, channel,
    C: tl.constexpr, IMAGES: tl.constexpr, PARTS: tl.constexpr,
    POSITIONS: tl.constexpr, PART: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """Of a channel's parts from an image and a part on: where they lie, how many positions each
    has, and which there are.
    """
    image = first + tl.arange(0, BLOCK_I)
    part = start + tl.arange(0, BLOCK_P)
    place = (image * C + channel).to(tl.int64)[:, None] * PARTS + part[None, :]
    count = tl.minimum(POSITIONS - part * PART, PART).to(tl.float32)[None, :]
    return place, count, (image < IMAGES)[:, None] & (part < PARTS)[None, :]
''',
)

SETTLE = (
    "kmem_settle_moments",
    '''
@triton.jit
def kmem_settle_moments(
    means, spreads, middles, scales, shifts, weight, bias, running_mean, running_var,
    C: tl.constexpr, IMAGES: tl.constexpr, PARTS: tl.constexpr,
    POSITIONS: tl.constexpr, PART: tl.constexpr, EPS: tl.constexpr,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr,
    RUNNING: tl.constexpr, MOMENTUM: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """Mean, scale and shift of a channel, of PARTS parts of each of IMAGES images; a part has PART
    of the POSITIONS of an image, the last one what is left.
    """
    channel = tl.program_id(0)
    total: tl.constexpr = IMAGES * POSITIONS * 1.0
    sums = tl.zeros((BLOCK_I, BLOCK_P), tl.float32)
    for first in range(0, IMAGES, BLOCK_I):
        for start in range(0, PARTS, BLOCK_P):
            place, count, inside = kmem_find_parts(
                first, start, channel, C, IMAGES, PARTS, POSITIONS, PART, BLOCK_I, BLOCK_P
            )
            middle = tl.load(means + place, mask=inside, other=0.0)
            sums += tl.where(inside, middle * (count / total), 0.0)
    mean = tl.sum(tl.sum(sums, axis=1), axis=0)
    sums = tl.zeros((BLOCK_I, BLOCK_P), tl.float32)
    for first in range(0, IMAGES, BLOCK_I):
        for start in range(0, PARTS, BLOCK_P):
            place, count, inside = kmem_find_parts(
                first, start, channel, C, IMAGES, PARTS, POSITIONS, PART, BLOCK_I, BLOCK_P
            )
            away = tl.load(means + place, mask=inside, other=0.0) - mean
            spread = tl.load(spreads + place, mask=inside, other=0.0)
            sums += tl.where(inside, spread + count * away * away, 0.0)
    spread = tl.sum(tl.sum(sums, axis=1), axis=0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(spread, total) + EPS))
    shift = 0.0
    if WEIGHTED:
        scale = scale * tl.load(weight + channel).to(tl.float32)
    if BIASED:
        shift = tl.load(bias + channel).to(tl.float32)
    tl.store(middles + channel, mean)
    tl.store(scales + channel, scale)
    tl.store(shifts + channel, shift)
    if RUNNING:
        fresh = tl.div_rn(spread, total - 1.0)
        old_mean = tl.load(running_mean + channel).to(tl.float32)
        old_var = tl.load(running_var + channel).to(tl.float32)
        new_mean = (1.0 - MOMENTUM) * old_mean + MOMENTUM * mean
        new_var = (1.0 - MOMENTUM) * old_var + MOMENTUM * fresh
        tl.store(running_mean + channel, new_mean.to(running_mean.dtype.element_ty))
        tl.store(running_var + channel, new_var.to(running_var.dtype.element_ty))
''',
)

APPLY = (
    "kmem_apply_moments",
    '''
@triton.jit
def kmem_apply_moments(
    raw, out,
    extra, AFTER: tl.constexpr, STEPS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BATCH_INNER: tl.constexpr,
    OUT_OUTER: tl.constexpr, OUT_INNER: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """A tile of what a convolution made, channels by positions of one image and group, normalised
    and with what follows.
    """
    row_blocks: tl.constexpr = (M + BLOCK_C - 1) // BLOCK_C
    column_blocks: tl.constexpr = (N + BLOCK_P - 1) // BLOCK_P
    even: tl.constexpr = (M % BLOCK_C == 0) and (N % BLOCK_P == 0)
    pid = tl.program_id(0)
    columns = pid % column_blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    rows = pid // column_blocks % row_blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    batch = pid // (column_blocks * row_blocks)
    inside = None if even else (rows[:, None] < M) & (columns[None, :] < N)
    place = rows[:, None] * N + columns[None, :]
    source = raw + batch.to(tl.int64) * (M * N)
    acc = tl.load(source + place, mask=inside).to(tl.float32)
    acc = AFTER(acc, batch, rows, columns, extra, STEPS, M, N, BATCH_INNER)
    image = (batch // BATCH_INNER).to(tl.int64)
    target = out + image * OUT_OUTER + batch % BATCH_INNER * OUT_INNER
    tl.store(target + place, acc.to(out.dtype.element_ty), mask=inside)
''',
)


# --- which sites


def norm_sites(graph: OpGraph, sites: Collection[Site]) -> list[Site]:
    """The sites of convolutions, each with the batch norm in training mode that alone reads it."""
    return extend_sites(sites, lambda site, others: _norm(graph, site, others))


def _norm(graph: OpGraph, site: Site, others: Collection[str]) -> Site | None:
    detail, (made,) = site.detail, site.outputs
    assert isinstance(detail, Convolution)
    users = graph.users(made.name)
    is_plain = not (detail.is_closed or detail.is_pooled) and made.spec.is_contiguous
    if not is_plain or len(users) != 1 or made.name in graph.outputs:
        return None
    (norm,) = users
    if norm.name in others or norm.target != _NORM or norm.spec.dtype != made.spec.dtype:
        return None
    behind = grow_epilogue(graph, norm, {*others, *site.nodes})
    for members in (behind, ()) if behind else ((),):
        normed = _with_norm(graph, site, norm, members)
        if normed is not None:
            return normed
    return None


def _with_norm(graph: OpGraph, site: Site, norm: Node, members: Sequence[Node]) -> Site | None:
    """A site with a norm and what follows that; None if they do not go together."""
    detail = site.detail
    call = find_operator(norm.target).call(graph, norm)
    is_trained = isinstance(lowering_of(graph, norm), Reduction)
    if not is_trained or not isinstance(call["momentum"], float):
        return None
    roles = tuple(role for role in _ROLES if call.value(role) is not None)
    parameters = [call.spec(role) for role in roles]
    if len(_MOVED & {*roles}) == 1 or detail.images * detail.positions < 2:
        return None
    if any(spec.dtype not in FLOATS or not spec.is_contiguous for spec in parameters):
        return None
    follows = write_epilogue(graph, norm, None, None, members)
    last = members[-1] if members else norm
    if follows is None or len(follows.operands) > MAX_OPERANDS:
        return None
    steps = epilogue_steps(graph, detail, follows, None, members)
    if steps is None or not last.spec.has_contiguous_items:
        return None
    moments = [f"x{len(steps) + place}" for place in range(_MOMENTS)]
    chain = replace(
        follows,
        statements=(("acc", "(acc - {}) * {} + {}".format(*moments)), *follows.statements),
        operands=(*follows.operands, "mean", "scale", "shift"),
        helpers=tuple(dict([*follows.helpers, LOAD_OPERAND]).items()),
    )
    trained = TrainedNorm(
        float(call["eps"]), float(call["momentum"]), roles, chain, steps, last.spec
    )
    names = [*(operand.name for operand in site.inputs), *map(call.value, roles)]
    inputs = kept_operands(graph, (*names, *follows.operands))
    return replace(
        site,
        nodes=(*site.nodes, norm.name, *(member.name for member in members)),
        inputs=inputs,
        outputs=(Operand(last.name, last.spec),),
        detail=replace(detail, norm=trained),
        bytes=sum(operand.spec.bytes for operand in inputs) + last.spec.bytes,
    )


# --- their text


def leave_moments(detail: Convolution) -> Convolution:
    """A convolution whose epilogue leaves moments, if a norm reads it; else as it is.

    Two pointers stand behind those of its operands; behind all, kernels put the number of the tile
    along positions.
    """
    if detail.norm is None:
        return detail
    epilogue, first = detail.epilogue, len(detail.operand_steps)
    made = epilogue.statements[-1][0] if epilogue.statements else "acc"
    pointers = f"extra[{first}], extra[{first + 1}], extra[{first + 2}]"
    text = f"kmem_leave_moments({made}, batch, rows, columns, {pointers}, M, N, BATCH_INNER)"
    leaving = replace(
        epilogue,
        statements=(*epilogue.statements, ("left", text)),
        helpers=(*epilogue.helpers, LEAVE),
    )
    return replace(
        detail, epilogue=leaving, operand_steps=(*detail.operand_steps, *[(0, 0, 0, 0)] * 2)
    )


def norm_kernels(detail: Convolution) -> tuple[tuple[str, str], ...]:
    """The kernels behind a convolution that a norm reads; none behind others."""
    if detail.norm is None:
        return ()
    return (FIND, SETTLE, *hand_in((APPLY,), {AFTER_LOAD: detail.norm.chain}))


def write_normed_launcher(detail: Convolution, launches: Sequence[str], positions: int) -> str:
    """`launch(x, w, e0, ...)` of a convolution, with the norm that reads it, if one does.

    Args:
        detail: as it was before `leave_moments`.
        launches: statements that write `out`, and leave moments if a norm reads it.
        positions: of a tile.
    """
    norm = detail.norm
    if norm is None:
        return write_launcher(detail, launches)
    first, behind = len(detail.operand_steps), len(norm.steps)
    inputs = ["x", "w", *(f"e{place}" for place in range(first)), *norm.roles]
    inputs += [f"p{place}" for place in range(behind)]
    parts, channels = ceil_div(detail.positions, positions), detail.channels_out
    block_p = min(_RESULTS, next_power_of_two(parts))
    block_i = min(_RESULTS // block_p, next_power_of_two(detail.images))
    warps = max(4, min(_MOST_WARPS, block_i * block_p // _RESULTS_OF_WARP))
    left = [f"e{first}", f"e{first + 1}"]
    moments = [f"p{behind + place}" for place in range(_MOMENTS)]
    found = "dtype=torch.float32, device=x.device"
    given = [role if role in norm.roles else left[0] for role in _ROLES]
    return write_launch_function(
        inputs,
        [
            write_allocation("out", detail.out, "x"),
            *(
                f"{name} = torch.empty({detail.images * channels * parts}, {found})"
                for name in left
            ),
            *launches,
            *(f"{name} = torch.empty({channels}, {found})" for name in moments),
            write_launch(
                "kmem_settle_moments",
                channels,
                ", ".join((*left, *moments, *given)),
                f"C={channels}, IMAGES={detail.images}, PARTS={parts}",
                f"POSITIONS={detail.positions}, PART={positions}, EPS={norm.eps!r}",
                f"WEIGHTED={'weight' in norm.roles}, BIASED={'bias' in norm.roles}",
                f"RUNNING={'running_mean' in norm.roles}, MOMENTUM={norm.momentum!r}",
                f"BLOCK_I={block_i}, BLOCK_P={block_p}, num_warps={warps}",
            ),
            write_allocation("result", norm.result, "x"),
            _write_apply(detail, norm),
            "return result",
        ],
    )


def _write_apply(detail: Convolution, norm: TrainedNorm) -> str:
    by_channel = (0, detail.group_out, 1, 0)
    block_p = min(_APPLIED_COLUMNS, next_power_of_two(detail.positions))
    block_c = min(max(1, _APPLIED // block_p), next_power_of_two(detail.group_out))
    tiles = ceil_div(detail.group_out, block_c) * ceil_div(detail.positions, block_p)
    return write_launch(
        "kmem_apply_moments",
        tiles * detail.batches,
        "out, result",
        *port_arguments(AFTER_LOAD, norm.chain, (*norm.steps, *[by_channel] * _MOMENTS)),
        f"M={detail.group_out}, N={detail.positions}, BATCH_INNER={detail.groups}",
        f"OUT_OUTER={norm.result.stride[0]}, OUT_INNER={detail.group_out * detail.positions}",
        f"BLOCK_C={block_c}, BLOCK_P={block_p}",
    )


def norm_cost_ms(detail: Convolution, site: Site, device: Device) -> float:
    """What the kernels behind a convolution should take, in ms; 0 where no norm reads it."""
    norm = detail.norm
    if norm is None:
        return 0.0
    behind = site.inputs[len(site.inputs) - len(norm.steps) :] if norm.steps else ()
    moved = detail.out.bytes + norm.result.bytes + sum(each.spec.bytes for each in behind)
    return copy_ms(moved, device) + 2 * device.launch_ms
