"""What follows a convolution beyond element by element, written with it.

Reductions over the channels of a position (closing.py) and poolings (pooled_tile.py) happen on a
tile of what the library made. Norms and sums over positions take a kernel of statistics before:
moments.py has it.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from kmem.codegen.chains.epilogue import LOAD_OPERAND, MAX_OPERANDS, Epilogue, grow_epilogue
from kmem.codegen.convolutions.closing import close_sites
from kmem.codegen.convolutions.convolution import Convolution, epilogue_steps
from kmem.codegen.convolutions.pooled_tile import pool_sites
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators import row
from kmem.problem.operators.expressions import Helper, order_helpers
from kmem.problem.operators.row import Call
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.recipes import Operand, Site

from .lines import LOAD_LINE, NORM_LINES, read_lines, write_lines
from .vendor import Found, Statistics, VendorConv, steps_of

_SUMS = {"aten.mean.dim": "mean", "aten.sum.dim_IntList": "sum"}
_GLOBAL_POOLINGS = tuple(f"aten.adaptive_avg_pool{rank}d.default" for rank in (1, 2, 3))
_NORMS = tuple(f"aten.{name}_norm.default" for name in ("group", "instance", "batch"))
_ROLES = ("weight", "bias", "running_mean", "running_var")
#: Channels of a set of statistics, at most: one program settles it.
_MOST_CHANNELS = 4096


def extend_tail(graph: OpGraph, found: Found, taken: Collection[str]) -> Found:
    """A convolution with more of what follows it; itself where nothing more goes with it."""
    users = [user for user in graph.users(found.result) if user.name not in taken]
    if not users or found.result in graph.outputs:
        return found
    if any(isinstance(lowering_of(graph, user), row.Reduction) for user in users):
        normed = _normed(graph, found, users, taken) or _lined(graph, found, users, taken)
        if normed is not None:
            return _pooled(graph, normed, taken) or normed
        closed = _closed(graph, found, taken)
        if closed is not None:
            return closed
    pooled = _pooled(graph, found, taken) or found
    return _summed(graph, pooled, taken) or pooled


# --- on a tile


def _plain_site(graph: OpGraph, found: Found) -> Site:
    """A convolution without what precedes it, as the modules of tiles take it."""
    epilogue = found.detail.base.epilogue
    names = (*found.inputs[:2], *epilogue.operands)
    return Site(
        found.anchor,
        "conv",
        found.nodes[found.nodes.index(found.anchor) :],
        tuple(Operand(name, graph.spec(name)) for name in names),
        (Operand(found.result, graph.spec(found.result)),),
        found.detail.base,
        0,
        0.0,
    )


def _closed(graph: OpGraph, found: Found, taken: Collection[str]) -> Found | None:
    (site,) = close_sites(graph, [_plain_site(graph, found)])
    return _widened(graph, found, site, taken) if site.detail.is_closed else None


def _pooled(graph: OpGraph, found: Found, taken: Collection[str]) -> Found | None:
    (site,) = pool_sites(graph, [_plain_site(graph, found)], are_apart=True)
    return _widened(graph, found, site, taken) if site.detail.is_pooled else None


def _widened(graph: OpGraph, found: Found, site: Site, taken: Collection[str]) -> Found | None:
    """What was found, with the tail of a site."""
    tail, (output,) = site.detail, site.outputs
    assert isinstance(tail, Convolution)
    more = [name for name in site.nodes if name not in found.nodes]
    spec = output.spec
    result = steps_of(spec)
    if tail.leaves_row:
        result = (spec.numel // spec.shape[0], 0, 1)
    if result is None or any(name in taken for name in more):
        return None
    base = replace(
        found.detail.base,
        epilogue=tail.epilogue,
        operand_steps=tail.operand_steps,
        is_closed=tail.is_closed,
        leaves_row=tail.leaves_row,
        window=tail.window,
    )
    detail = replace(found.detail, base=base, result=result, result_spec=spec)
    return _with_more(found, detail, more, output.name)


def _with_more(found: Found, detail: VendorConv, more: Sequence[str], result: str) -> Found:
    statistics = detail.statistics
    return replace(
        found,
        detail=detail,
        nodes=(*found.nodes, *more),
        inputs=(
            *found.inputs[:2],
            *detail.base.epilogue.operands,
            *(statistics.parameters if statistics is not None else ()),
            *detail.prologue.operands,
        ),
        result=result,
    )


# --- sums over positions


def _summed(graph: OpGraph, found: Found, taken: Collection[str]) -> Found | None:
    """What was found, with the one sum or mean over positions that reads it."""
    users, detail = graph.users(found.result), found.detail
    if len(users) != 1 or found.result in graph.outputs or detail.base.is_closed:
        return None
    if detail.lines is not None:
        return None  # a tile of what is summed need not hold whole rows
    (user,) = users
    read = graph.spec(found.result)
    dims = _summed_dims(user, len(read.shape))
    positions = tuple(range(2, len(read.shape)))
    if user.name in taken or not positions or dims not in (positions, (1, *positions)):
        return None
    if not user.spec.is_contiguous or user.spec.dtype != read.dtype:
        return None
    channels = read.shape[1] if 1 in dims else 1
    is_sum = _SUMS.get(user.target) == "sum"
    factor = 1.0 if is_sum else 1.0 / (channels * prod(read.shape[2:]))
    statistics = Statistics(detail.base.epilogue, channels, is_norm=False, factor=factor)
    summed = replace(detail, statistics=statistics, result_spec=user.spec)
    return _with_more(found, summed, [user.name], user.name)


def _summed_dims(node: Node, rank: int) -> tuple[int, ...]:
    """The dims that a node sums or averages; none for other nodes."""
    if node.kwargs:
        return ()
    if node.target in _GLOBAL_POOLINGS:
        sizes = node.args[1]
        is_whole = isinstance(sizes, tuple) and all(size == 1 for size in sizes)
        return tuple(range(rank - len(sizes), rank)) if is_whole else ()
    dims = node.args[1] if node.target in _SUMS and len(node.args) > 1 else ()
    return tuple(sorted(dim % rank for dim in dims)) if isinstance(dims, tuple) else ()


# --- norms


def _normed(
    graph: OpGraph, found: Found, users: Sequence[Node], taken: Collection[str]
) -> Found | None:
    """What was found, with the norm that reads it and what follows that element by element."""
    norm = next((user for user in users if user.target in _NORMS), None)
    if norm is None or norm.spec.dtype != graph.spec(found.result).dtype:
        return None
    call = find_operator(norm.target).call(graph, norm)
    statistics = _read_norm(call, found.detail)
    if statistics is None or call.value("x") != found.result:
        return None
    detail = replace(found.detail, statistics=statistics)
    return _with_norm(graph, replace(found, detail=detail), norm, taken)


def _lined(
    graph: OpGraph, found: Found, users: Sequence[Node], taken: Collection[str]
) -> Found | None:
    """What was found, with the layer norm over rows that reads it and alone does."""
    if len(users) != 1:
        return None
    lines = read_lines(graph, users[0], found)
    if lines is None:
        return None
    lined = replace(found, detail=replace(found.detail, lines=lines))
    return _with_norm(graph, lined, users[0], taken)


def _with_norm(graph: OpGraph, found: Found, norm: Node, taken: Collection[str]) -> Found | None:
    """What was found with a norm that its detail has, and with what follows that."""
    behind = grow_epilogue(graph, norm, {*taken, *found.nodes})
    for members in (behind, ()) if behind else ((),):
        detail = _write_normed(graph, found, norm, members)
        names = [norm.name, *(member.name for member in members)]
        inner = {found.anchor, *found.nodes, *names[:-1]}
        is_left = any(
            name in graph.outputs
            or any(user.name not in (*inner, names[-1]) for user in graph.users(name))
            for name in inner
        )
        if detail is not None and not is_left:
            return _with_more(found, detail, names, names[-1])
    return None


def _read_norm(call: Call, conv: VendorConv) -> Statistics | None:
    """The statistics of a norm; None if they are not those of what it reads."""
    lowering = lowering_of(call.graph, call.node)
    if not isinstance(lowering, row.Reduction) or conv.statistics is not None:
        return None
    over_images = call.node.target == "aten.batch_norm.default"
    if over_images and not isinstance(call["momentum"], float):
        return None
    channels = 1
    if call.node.target == "aten.group_norm.default":
        channels = conv.base.channels_out // int(call["num_groups"])
    roles = [role for role in _ROLES if call.value(role) is not None]
    specs = [call.spec(role) for role in roles]
    if channels > _MOST_CHANNELS or len({"running_mean", "running_var"} & {*roles}) == 1:
        return None
    if any(spec.dtype not in FLOATS or not spec.is_contiguous for spec in specs):
        return None
    return Statistics(
        conv.base.epilogue,
        channels,
        is_norm=True,
        over_images=over_images,
        eps=float(call["eps"]),
        momentum=float(call["momentum"]) if over_images else 0.0,
        roles=tuple(roles),
        parameters=tuple(call.value(role) for role in roles),
    )


def _write_normed(
    graph: OpGraph, found: Found, norm: Node, members: Sequence[Node]
) -> VendorConv | None:
    """A convolution whose epilogue goes on with a norm and with what follows it."""
    base, lines = found.detail.base, found.detail.lines
    before = base.epilogue
    operands = list(before.operands)
    parameters = [name for _, name in lines.parameters] if lines is not None else []
    if not {*operands}.isdisjoint(parameters):
        return None  # it means something else there
    operands += parameters
    inner = {found.anchor, *found.nodes, norm.name, *(member.name for member in members)}
    behind = dict.fromkeys(
        name for member in members for name in member.refs() if name not in inner
    )
    operands += [name for name in behind if name not in operands]
    if len(operands) > MAX_OPERANDS or any(graph.spec(name).dtype not in FLOATS for name in behind):
        return None
    if any(name in (*before.operands, *parameters) for name in behind):
        return None  # it may mean something else there
    read = before.statements[-1][0] if before.statements else "acc"
    # what these three are says behind.py
    normed = [("normed", f"({read} - mean) * scale + shift")]
    if lines is not None:
        normed = write_lines(lines, read, len(before.operands))
    statements = [*before.statements, *normed]
    variables = {found.result: read, norm.name: "normed"}
    variables |= {name: f"x{place}" for place, name in enumerate(operands)}
    helpers: list[Helper] = []
    for place, member in enumerate(members):
        if any(name in inner and name not in variables for name in member.refs()):
            return None
        written = write_pointwise(graph, member, variables.__getitem__)
        assert written is not None, "grow_epilogue takes what can be written"
        statements.append((f"z{place}", written.text))
        variables[member.name] = f"z{place}"
        helpers += written.helpers
    read_behind = Epilogue(operands=tuple(operands[len(before.operands) + len(parameters) :]))
    steps = epilogue_steps(graph, base, read_behind, None, members)
    last = members[-1] if members else norm
    result = steps_of(last.spec)
    if steps is None or result is None:
        return None
    of_lines = (NORM_LINES, LOAD_LINE) if lines is not None else ()
    known = dict([*before.helpers, *of_lines, *order_helpers(helpers), LOAD_OPERAND])
    steps = (*[(0, 0, 0, 0)] * len(parameters), *steps)
    epilogue = Epilogue(tuple(statements), tuple(operands), tuple(known.items()))
    return replace(
        found.detail,
        base=replace(base, epilogue=epilogue, operand_steps=(*base.operand_steps, *steps)),
        result=result,
        result_spec=last.spec,
    )
