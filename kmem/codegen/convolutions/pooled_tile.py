"""Pooling behind a convolution, written where its tile is stored.

Windows that do not overlap part the positions of an image. A tile takes the positions of one window
one after the other, so that it holds whole windows and stores a value for each: the image between,
4 to 64 times as large, is never written, and what no window reaches is never computed. A kernel
whose tile numbers the first positions of all its windows, then all second ones, and so on, has them
`apart`: a thread whose registers are the last numbers then pools without asking its neighbours.

Covered: max and average pooling with stride equal to kernel, no padding, and windows of 2, 4, 8 ...
positions. What stands between the convolution and the pooling, and behind the pooling, is written
too, as far as it reads nothing of its own for each position.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.chains.epilogue import LOAD_OPERAND, MAX_OPERANDS, Epilogue, grow_epilogue
from kmem.codegen.convolutions.convolution import Convolution, convolution_tensors, extend_sites
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.expressions import order_helpers
from kmem.problem.sizes import per_axis
from kmem.recipes import Operand, Site

_POOLINGS = {
    f"aten.{kind}_pool{rank}d.default": (kind, rank) for kind in ("max", "avg") for rank in (2, 3)
}
#: Positions of a window: a tile has 64 or more, and whole windows.
_MOST_POSITIONS = 64
_SPATIAL = 3


@dataclass(frozen=True, slots=True)
class _Pooling:
    node: Node
    kind: str
    window: tuple[int, ...]  # depth, height, width


def pool_sites(graph: OpGraph, sites: Collection[Site], *, are_apart: bool = False) -> list[Site]:
    """The sites of convolutions, each with the pooling that follows if there is one.

    Args:
        are_apart: whether a tile's numbers have the positions of a window apart; where windows
            belong is then the kernel's own.
    """
    return extend_sites(sites, lambda site, others: _pool(graph, site, others, are_apart))


def _pool(graph: OpGraph, site: Site, others: Collection[str], are_apart: bool) -> Site | None:
    detail, result = site.detail, site.outputs[0].name
    assert isinstance(detail, Convolution)
    users = graph.users(result)
    if detail.is_closed or len(users) != 1 or result in graph.outputs or users[0].name in others:
        return None
    if any(position for _, _, _, position in detail.operand_steps):
        return None
    pooling = _read_pooling(graph, users[0], detail)
    if pooling is None:
        return None
    refused = {*others, *site.nodes}
    members = grow_epilogue(graph, pooling.node, refused)
    behind = [
        name for node in members for name in node.refs() if _is_foreign(name, pooling, members)
    ]
    if any(not _is_by_channel(graph, name, pooling.node) for name in behind):
        members, behind = (), []
    operands = tuple(dict.fromkeys((*detail.epilogue.operands, *behind)))
    if len(operands) > MAX_OPERANDS or {*behind} & {*detail.epilogue.operands}:
        return None
    last = members[-1] if members else pooling.node
    if not last.spec.has_contiguous_items:
        return None
    added = len(operands) - len(detail.epilogue.operands)
    pooled = replace(
        detail,
        axes=tuple(
            replace(axis, out=axis.out // size * size)
            for axis, size in zip(detail.axes, pooling.window, strict=True)
        ),
        out=last.spec,
        epilogue=_write_pooled(graph, detail.epilogue, pooling, members, operands, are_apart),
        operand_steps=(*detail.operand_steps, *[(0, detail.group_out, 1, 0)] * added),
        window=pooling.window,
    )
    tensors = convolution_tensors(graph.node(site.name))
    inputs = kept_operands(graph, (tensors["input"], tensors["weight"], *operands))
    output = Operand(last.name, last.spec)
    return replace(
        site,
        nodes=(*site.nodes, pooling.node.name, *(node.name for node in members)),
        inputs=inputs,
        outputs=(output,),
        detail=pooled,
        bytes=sum(operand.spec.bytes for operand in (*inputs, output)),
        flops=pooled.flops,
    )


def _is_foreign(name: str, pooling: _Pooling, members: Sequence[Node]) -> bool:
    return name != pooling.node.name and all(name != node.name for node in members)


def _is_by_channel(graph: OpGraph, name: str, pooled: Node) -> bool:
    """Whether a value is one for each channel."""
    spec, shape = graph.spec(name), pooled.spec.shape
    padded = (1,) * (len(shape) - len(spec.shape)) + spec.shape
    is_channels = padded == (1, shape[1], *[1] * (len(shape) - 2))
    return is_channels and shape[1] > 1 and spec.is_contiguous


def _read_pooling(graph: OpGraph, node: Node, detail: Convolution) -> _Pooling | None:
    """The pooling that a node does, if a tile of a convolution can hold its windows whole."""
    if node.target not in _POOLINGS or node.kwargs or not isinstance(node.args[0], Ref):
        return None
    kind, rank = _POOLINGS[node.target]
    window = per_axis(node.args[1], rank)
    stride = per_axis(node.args[2], rank) if len(node.args) > 2 and node.args[2] else window
    if stride != window or any(map(_is_set, _others(kind, node))):
        return None
    size = prod(window)
    if not 1 < size <= _MOST_POSITIONS or size & (size - 1):
        return None
    whole = (*[1] * (_SPATIAL - rank), *window)
    outs = tuple(axis.out // step for axis, step in zip(detail.axes, whole, strict=True))
    return _Pooling(node, kind, whole) if outs[-rank:] == node.spec.shape[2:] else None


def _others(kind: str, node: Node) -> list[object]:
    """The arguments behind kernel and stride that change what is pooled if they are set."""
    if kind == "avg":  # padding, ceil_mode, and without padding count_include_pad means nothing
        return [*node.args[3:5], *node.args[6:7]]
    dilation = node.args[4] if len(node.args) > 4 else 1
    is_dilated = any(
        step != 1 for step in (dilation if isinstance(dilation, tuple) else [dilation])
    )
    return [*node.args[3:4], *node.args[5:6], is_dilated]


def _is_set(argument: object) -> bool:
    return any(argument) if isinstance(argument, tuple) else bool(argument)


def _write_pooled(
    graph: OpGraph,
    before: Epilogue,
    pooling: _Pooling,
    members: Sequence[Node],
    operands: tuple[str, ...],
    are_apart: bool,
) -> Epilogue:
    """The epilogue of the convolution, the windows of its tile pooled, and what follows them."""
    sums = before.statements[-1][0] if before.statements else "acc"
    size = prod(pooling.window)
    along = 1 if are_apart else 2
    shape = f"{size}, acc.shape[1] // {size}" if are_apart else f"acc.shape[1] // {size}, {size}"
    statements = [
        *before.statements,
        ("windows", f"tl.reshape({sums}, (acc.shape[0], {shape}))"),
    ]
    places = (
        ("columns", f"tl.reshape(columns, (columns.shape[0] // {size}, {size}))"),
        ("columns", f"tl.min(columns, axis=1) // {size}"),
        ("columns", f"tl.where(columns < N // {size}, columns, N)"),
    )
    if pooling.kind == "max":
        is_nan = f"tl.max((windows != windows).to(tl.int32), axis={along}) != 0"
        statements.append(("is_nan", is_nan))
        text = f"tl.where(is_nan, float('nan'), tl.max(windows, axis={along}))"
    else:
        text = f"tl.sum(windows, axis={along}) * {1.0 / size!r}"
    statements.append(("pooled", text))
    variables = {name: f"x{place}" for place, name in enumerate(operands)}
    variables[pooling.node.name] = "pooled"
    helpers = []
    for place, node in enumerate(members):
        written = write_pointwise(graph, node, variables.__getitem__)
        assert written is not None, "grow_epilogue takes what can be written"
        statements.append((f"z{place}", written.text))
        variables[node.name] = f"z{place}"
        helpers += written.helpers
    loads = [LOAD_OPERAND] if operands else []
    known = dict([*before.helpers, *order_helpers(helpers), *loads])
    where = () if are_apart else places
    return Epilogue(tuple(statements), operands, tuple(known.items()), where)
