"""Chunked scans in a graph: the state-space dual of Mamba-2 as PyTorch writes it.

    within: sum over n, s of c[l, n] b[s, n] exp(t[l] - t[s]) x[s, p], masked above the diagonal
    states: sum over l of b[l, n] exp(t[-1] - t[l]) x[l, p], for every chunk
    before: states passed on from chunk to chunk (passing.py)
    y:      within + exp(t[l]) * sum over n of c[l, n] before[p, n]

terms.py reads products and decays.py the exponentials; what lies in which order, in how many
operators and under which letters does not matter. Covered: fp32; b and c of every head or of all;
with a first state or from zero; y, the last state, or both. Not covered: half precision, b and c of
groups of heads, running sums that are masked instead of subtracted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Operand, Site
from kmem.records import Contract, Precision, TensorSpec

from .decays import Decay, read_decay
from .passing import Passing, find_passings
from .scan import AXES, Scan
from .terms import Factor, Sum, read_sum

_RESHAPES = ("aten.reshape.default", "aten.view.default", "aten.contiguous.default")
#: Steps inside a tile are counted in 32 bits: elements that an axis of one may span.
_MAX_SPAN = 2**30
#: Elements of a state and places of a chunk that tiles hold whole.
MOST_STATE, MOST_PLACES = 256, 1024

#: The role of each dimension of a value, one of AXES.
Roles = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class _States:
    """The states of chunks, read: roles of the dimensions of a, b, x and of the states."""

    passing: Passing
    b: str
    x: str
    a_roles: Roles
    b_roles: Roles
    x_roles: Roles
    roles: Roles


def find_scans(graph: OpGraph, contract: Contract) -> list[Site]:
    """The scans of a graph as sites, in its order."""
    sites = [
        site
        for passing in find_passings(graph)
        if (site := _read(graph, passing, contract)) is not None
    ]
    return sorted(sites, key=lambda site: min(graph.place(name) for name in site.nodes))


def _read(graph: OpGraph, passing: Passing, contract: Contract) -> Site | None:
    for states in _read_states(graph, passing):
        found = _find_y(graph, states)
        last = passing.last
        if found is not None or (last is not None and not _is_read(graph, passing)):
            return _site(graph, states, found, contract)
    return None


def _is_read(graph: OpGraph, passing: Passing) -> bool:
    """Whether states before chunks go anywhere."""
    return bool(passing.before) and bool(graph.users(passing.before))


def _read_states(graph: OpGraph, passing: Passing) -> Iterator[_States]:
    """The states as sums over places, with either of their factors as x."""
    found = read_sum(graph, passing.states)
    decays = {each.name: read_decay(graph, each.name) for each in found.factors}
    ends = [each for each in found.factors if _is(decays[each.name], "end", passing)]
    others = [each for each in found.factors if each not in ends]
    if len(ends) != 1 or len(others) != 2 or others[0].name == others[1].name:
        return
    decay = decays[ends[0].name]
    assert decay is not None
    of_label = dict(zip(ends[0].labels, decay.dims, strict=True))
    place = next(label for label, dim in of_label.items() if dim == decay.axis)
    if place in found.labels or any(place not in each.labels for each in others):
        return
    chunk = found.labels[passing.chunk]
    own = [set(each.labels) - {None} for each in others]
    only = [
        [label for label in labels - own[1 - i] if label is not None]
        for i, labels in enumerate(own)
    ]
    single = [[label for label in each if label not in of_label] for each in only]
    for b, x in ((0, 1), (1, 0)):
        if len(single[b]) != 1 or len(single[x]) != 1:
            return
        roles: dict[int | None, str | None] = {None: None, place: "place", chunk: "chunk"}
        roles |= {single[b][0]: "state", single[x][0]: "column"}
        batches = [label for label in found.labels if label not in roles]
        if len(batches) > 2 or len(roles) + len(batches) != len(found.labels) + 2:
            return
        roles |= dict(zip(batches, ("outer", "inner")[2 - len(batches) :], strict=True))
        known = [each for factor in found.factors for each in factor.labels]
        if any(label not in roles for label in known) or roles[chunk] != "chunk":
            return
        a_roles: list[str | None] = [None] * len(graph.spec(decay.source).shape)
        for label, dim in of_label.items():
            if dim is not None:
                a_roles[dim] = roles[label]
        named = tuple(roles[label] for label in found.labels)
        if any(a_roles[dim] != named[own] for dim, own in passing.pairs):
            return
        yield _States(
            passing,
            others[b].name,
            others[x].name,
            tuple(a_roles),
            tuple(roles[label] for label in others[b].labels),
            tuple(roles[label] for label in others[x].labels),
            named,
        )


def _is(decay: Decay | None, kind: str, passing: Passing) -> bool:
    return (
        decay is not None
        and decay.kind == kind
        and (decay.source, decay.axis) == (passing.source, passing.axis)
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """Where y is made: c with the roles of its dimensions, those of y, and the node once known."""

    c: str
    c_roles: Roles
    roles: Roles
    node: Node | None = None


def _find_y(graph: OpGraph, states: _States) -> _Found | None:
    """The addition of what a chunk and what the states before it make of c."""
    if not states.passing.before:
        return None
    for node in _below(graph, states.passing.before):
        if node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
            continue
        if not all(isinstance(each, Ref) for each in node.args):
            continue
        shapes = [graph.spec(each.name).shape for each in node.args]
        if shapes[0] != shapes[1]:
            continue
        sums = [read_sum(graph, each.name) for each in node.args]
        for within, through in (sums, sums[::-1]):
            found = _of_two(graph, states, node, within, through)
            if found is not None:
                return found
    return None


def _below(graph: OpGraph, name: str) -> Iterator[Node]:
    """The nodes that read a value, directly or through others, a few steps away."""
    seen: dict[str, Node] = {}
    front = list(graph.users(name))
    for _ in range(8):
        seen |= {node.name: node for node in front}
        front = [user for node in front for user in graph.users(node.name)]
    return iter(sorted(seen.values(), key=lambda node: graph.place(node.name)))


def _of_two(
    graph: OpGraph, states: _States, node: Node, within: Sum, through: Sum
) -> _Found | None:
    part = _within(graph, states, within)
    if part is None:
        return None
    known: dict[int | None, str | None] = {None: None}
    known |= dict(zip(through.labels, part.roles, strict=True))
    wanted = {part.c, states.passing.before}
    rest = [each for each in through.factors if each.name not in wanted]
    if len(rest) != 1 or len(through.factors) != 3:
        return None
    decay = read_decay(graph, rest[0].name)
    if not _is(decay, "start", states.passing):
        return None
    assert decay is not None
    dims = [None if dim is None else states.a_roles[dim] for dim in decay.dims]
    before = tuple(states.roles[dim] for dim in states.passing.before_dims)
    given = [(rest[0], dims)]
    given += [
        (each, part.c_roles if each.name == part.c else before)
        for each in through.factors
        if each.name in wanted
    ]
    is_same = all(_agrees(known, factor, each) for factor, each in given)
    return replace(part, node=node) if is_same else None


def _within(graph: OpGraph, states: _States, within: Sum) -> _Found | None:
    """A chunk's own part of y; None if a sum is no such part."""
    decays = {each.name: read_decay(graph, each.name) for each in within.factors}
    square = [each for each in within.factors if _is(decays[each.name], "between", states.passing)]
    names = [states.b, states.x]
    rest = [each for each in within.factors if each not in square and each.name not in names]
    if len(square) != 1 or len(rest) != 1 or len(within.factors) != 4:
        return None
    decay = decays[square[0].name]
    assert decay is not None
    later, earlier = square[0].labels[decay.row], square[0].labels[decay.column]
    roles: dict[int | None, str | None] = {None: None, later: "place", earlier: "earlier"}
    for place, label in enumerate(square[0].labels):
        if place not in (decay.row, decay.column) and label is not None:
            dim = decay.dims[place]
            roles[label] = None if dim is None else states.a_roles[dim]
    for factor in within.factors:
        if factor.name in names:
            own = states.b_roles if factor.name == states.b else states.x_roles
            own = tuple("earlier" if role == "place" else role for role in own)
            if not _agrees(roles, factor, own):
                return None
    c = rest[0]
    if any(label not in roles for label in (*c.labels, *within.labels)):
        return None
    c_roles = tuple(roles[label] for label in c.labels)
    own = tuple(roles[label] for label in within.labels)
    y_roles = {"place", "column", "chunk", *(set(states.roles) & {"outer", "inner"})}
    is_whole = set(own) == y_roles and len(own) == len(y_roles)
    if not is_whole or not {"place", "state"} <= set(c_roles) or "earlier" in c_roles:
        return None
    return _Found(c.name, c_roles, own)


def _agrees(
    known: dict[int | None, str | None], factor: Factor, roles: Sequence[str | None]
) -> bool:
    """Whether labels stand for these roles; what was not known yet is noted."""
    for label, role in zip(factor.labels, roles, strict=True):
        if label not in known and role not in known.values():
            known[label] = role
        if label not in known or known[label] != role:
            return False
    return True


# --- sites


def _site(graph: OpGraph, states: _States, found: _Found | None, contract: Contract) -> Site | None:
    passing = states.passing
    reads = {"a": passing.source, "b": states.b, "x": states.x}
    roles = {"a": states.a_roles, "b": states.b_roles, "x": states.x_roles}
    if found is not None:
        reads["c"], roles["c"] = found.c, found.c_roles
    if passing.first is not None:
        reads["first"] = passing.first
        roles["first"] = tuple(
            None if dim is None else states.roles[dim] for dim in passing.first_dims
        )
    sizes = dict.fromkeys(AXES, 1)
    for name, own in roles.items():
        for size, role in zip(graph.spec(reads[name]).shape, own, strict=True):
            if role is not None:
                sizes[role] = max(sizes[role], size)
    steps = {name: _steps(graph.spec(reads[name]), own) for name, own in roles.items()}
    outputs = []
    if found is not None:
        result, steps["y"] = _result(graph, found)
        outputs.append(result)
    if passing.last is not None:
        spec = graph.spec(passing.last)
        own = [states.roles[dim] for dim in passing.last_dims]
        steps["last"] = _steps(spec, own)
        outputs.append(Operand(passing.last, spec))
    order = ("a", "b", "c", "x", "first")
    inputs = tuple(Operand(reads[each], graph.spec(reads[each])) for each in order if each in reads)
    specs = [each.spec for each in (*inputs, *outputs)]
    is_covered = (
        all(spec.dtype == "float32" and spec.numel > 0 for spec in specs)
        and len({each.name for each in inputs}) == len(inputs)
        and sizes["state"] <= MOST_STATE
        and sizes["place"] <= MOST_PLACES
        and all(
            step * sizes[axis] < _MAX_SPAN
            for each in steps.values()
            for axis, step in each.items()
            if axis in ("place", "state", "column")
        )
    )
    nodes = _nodes(graph, [each.name for each in outputs], [each.name for each in inputs])
    if not is_covered or nodes is None:
        return None
    scan = Scan(
        sizes=sizes,
        steps=steps,
        outputs=tuple(each.spec for each in outputs),
        sums=passing.sums,
        is_rounded=contract.precision is Precision.TF32,
    )
    return Site(
        name=outputs[0].name,
        operator="recurrent",
        nodes=nodes,
        inputs=inputs,
        outputs=tuple(outputs),
        detail=scan,
        bytes=sum(spec.bytes for spec in specs),
        flops=scan.flops,
    )


def _result(graph: OpGraph, found: _Found) -> tuple[Operand, Mapping[str, int]]:
    """What is made of y: itself, or the copy in another shape that alone reads it."""
    node = found.node
    assert node is not None
    if graph.has_one_user(node.name):
        (user,) = graph.users(node.name)
        is_copy = user.target in _RESHAPES and user.spec.is_contiguous
        if is_copy and not node.spec.is_contiguous:
            shape = node.spec.shape
            stride = tuple(prod(shape[place + 1 :]) for place in range(len(shape)))
            dense = TensorSpec(shape, node.spec.dtype, stride)
            return Operand(user.name, user.spec), _steps(dense, found.roles)
    return Operand(node.name, node.spec), _steps(node.spec, found.roles)


def _steps(spec: TensorSpec, roles: Sequence[str | None]) -> Mapping[str, int]:
    steps = dict.fromkeys(AXES, 0)
    steps |= {
        role: step
        for role, step, size in zip(roles, spec.stride, spec.shape, strict=True)
        if role is not None and size > 1
    }
    return steps


def _nodes(graph: OpGraph, outputs: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...] | None:
    """The nodes between inputs and outputs, and what reads them and is read by nothing.

    What is read outside stays outside; None where a result would have to.
    """
    inner: set[str] = set()
    front = list(outputs)
    while front:
        node = graph.node(front.pop())
        if node is not None and node.name not in inner and node.name not in inputs:
            inner.add(node.name)
            front += node.refs()
    if set(outputs) & {ref for name in inner for ref in graph.node(name).refs()} & {*inputs}:
        return None
    live = _live(graph)
    for node in graph.nodes:
        is_waste = node.name not in live and any(ref in inner for ref in node.refs())
        if is_waste and all(
            ref in inner or not graph.depends_on(ref, inner) for ref in node.refs()
        ):
            inner.add(node.name)
    while True:
        shared = {
            name
            for name in inner - {*outputs}
            if name in graph.outputs or any(user.name not in inner for user in graph.users(name))
        }
        if not shared:
            break
        inner -= shared
    if any(graph.node(name).is_in_place for name in inner):
        return None
    return tuple(sorted(inner, key=graph.place))


def _live(graph: OpGraph) -> set[str]:
    """Nodes that outputs, or changes in place, come from."""
    front = [*graph.outputs, *(node.name for node in graph.nodes if node.is_in_place)]
    live: set[str] = set()
    while front:
        node = graph.node(front.pop())
        if node is not None and node.name not in live:
            live.add(node.name)
            front += node.refs()
    return live
