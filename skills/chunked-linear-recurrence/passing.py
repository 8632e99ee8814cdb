"""States passed on from chunk to chunk: as one product with masked decays, or step by step.

product: exp(segsum(pad(t[-1]))) times cat(first, states), of which all but the last are what
         chunks begin with, and the last is what is left
steps:   h = h * exp(t[-1]) + states[k], and a stack of what h was before
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kmem.problem.graph import Node, OpGraph, Ref

from .decays import Running, read_decay, read_running
from .terms import read_sum, read_view

_ZEROS = ("aten.zeros_like.default", "aten.zeros.default", "aten.new_zeros.default")
_PADS = ("aten.pad.default", "aten.constant_pad_nd.default")


@dataclass(frozen=True, slots=True)
class Passing:
    """How states of chunks become what the next begins with.

    `chunk` is the dimension of chunks of `states`, whose decays are sums of `source` along `axis`.
    `before` is what chunks begin with, "" where nothing reads it; `last` is what is left, None
    where nothing reads it; `first` what the scan begins with, None for zeros. Their dimensions are
    those of `states`. `pairs`: dimensions of the source and of `states` that are the same axis.
    `sums` as in `Scan`.
    """

    states: str
    chunk: int
    source: str
    axis: int
    before: str
    before_dims: tuple[int, ...]
    last: str | None
    last_dims: tuple[int, ...]
    first: str | None
    first_dims: tuple[int | None, ...]
    pairs: tuple[tuple[int, int], ...]
    sums: bool


def find_passings(graph: OpGraph) -> Iterator[Passing]:
    """The passings of a graph, in its order."""
    for node in graph.nodes:
        if node.target in ("aten.stack.default", "aten.cat.default"):
            found = _of_steps(graph, node)
        else:
            found = _of_product(graph, node)
        if found is not None:
            yield found


def _of_product(graph: OpGraph, node: Node) -> Passing | None:
    if node.target not in ("aten.einsum.default", "aten.permute.default"):
        return None
    found = read_sum(graph, node.name)
    if len(found.factors) != 2:
        return None
    for square, joined in (found.factors, found.factors[::-1]):
        decay = read_decay(graph, square.name)
        cat = graph.node(joined.name)
        if decay is None or decay.kind != "between" or cat is None:
            continue
        source = _padded_source(graph, decay.source, decay.axis)
        parts = cat.args[0] if cat.target == "aten.cat.default" else ()
        if source is None or not isinstance(parts, tuple) or len(parts) != 2:
            continue
        dims = source.view.dims
        rank = len(cat.spec.shape)
        chunk = (cat.args[1] if len(cat.args) > 1 else 0) % rank
        later, earlier = (square.labels[place] for place in (decay.row, decay.column))
        label_of = dict(zip(joined.labels, range(rank), strict=True))
        sizes = [graph.spec(each.name).shape[chunk] for each in parts]
        if label_of.get(earlier) != chunk or earlier in found.labels or sizes[0] != 1:
            continue
        if None in label_of or any(
            label not in label_of for label in found.labels if label != later
        ):
            continue
        # both know the same chunks, in the same order
        if (
            dims[decay.axis] is None
            or graph.spec(source.source).shape[dims[decay.axis]] != sizes[1]
        ):
            continue
        turned = tuple(chunk if each == later else label_of[each] for each in found.labels)
        place = turned.index(chunk)
        before, last = _readers(graph, node, place, sizes[1])
        if before is None:
            continue
        first = None if _is_zero(graph, parts[0].name) else parts[0].name
        first_dims = tuple(None if dim == chunk else dim for dim in range(rank))
        kept = (*turned[:place], *turned[place + 1 :])
        pairs = [(dims[decay.axis], chunk)]
        for position, label in enumerate(square.labels):
            dim = decay.dims[position]
            if label in label_of and dim is not None and label != earlier:
                pairs.append((dims[dim], label_of[label]))
        return Passing(
            states=parts[1].name,
            chunk=chunk,
            source=source.source,
            axis=source.axis,
            before=before,
            before_dims=turned,
            last=last,
            last_dims=kept,
            first=first,
            first_dims=first_dims,
            pairs=tuple(pairs),
            sums=True,
        )
    return None


def _padded_source(graph: OpGraph, name: str, axis: int) -> Running | None:
    """Of totals of chunks behind one zero: the running sums that they are the last of."""
    node = graph.node(name)
    rank = len(graph.spec(name).shape)
    if node is None or node.target not in _PADS or node.args[1] != (1, 0) or axis != rank - 1:
        return None
    if any(each not in ("constant", None, 0, 0.0) for each in (*node.args[2:],)) or node.kwargs:
        return None
    running = read_running(graph, node.args[0].name)
    if running is None:
        return None
    end = graph.spec(running.source).shape[running.axis] - 1
    if dict(running.view.fixed) != {running.axis: end}:
        return None
    return running


def _readers(graph: OpGraph, node: Node, place: int, chunks: int) -> tuple[str | None, str | None]:
    """All entries but the last, "" if nothing reads them, and the last; None for other readers."""
    before, last = "", None
    for user in graph.users(node.name):
        dim = user.args[1] % len(node.spec.shape) if len(user.args) > 1 else 0
        if user.target == "aten.slice.Tensor" and not before:
            is_whole = user.args[2] == 0 and user.spec.shape[place] == chunks
            before = user.name
        elif user.target == "aten.select.int" and last is None:
            is_whole = user.args[2] % (chunks + 1) == chunks
            last = user.name
        else:
            return None, None
        if dim != place or not is_whole:
            return None, None
    if node.name in graph.outputs:
        return None, None
    return before, last


def _is_zero(graph: OpGraph, name: str) -> bool:
    node = graph.node(name)
    return node is not None and node.target in _ZEROS


def _of_steps(graph: OpGraph, node: Node) -> Passing | None:
    """A stack of what the states were before each chunk."""
    parts = node.args[0]
    is_many = isinstance(parts, tuple) and len(parts) > 1
    if node.target != "aten.stack.default" or not is_many:
        return None
    rank = len(node.spec.shape)
    chunk = (node.args[1] if len(node.args) > 1 else 0) % rank
    steps = [
        _step(graph, one.name, other.name) for one, other in zip(parts, parts[1:], strict=False)
    ]
    if any(step is None for step in steps):
        return None
    known = {step.passed for step in steps if step}
    if len(known) != 1:
        return None
    (passed,) = known
    if passed.chunk != chunk or graph.spec(passed.states).shape != node.spec.shape:
        return None
    if [step.place for step in steps if step] != list(range(len(steps))):
        return None
    names = [each.name for each in parts]
    kept = tuple(dim for dim in range(rank) if dim != chunk)
    last = next(
        (
            user.name
            for state in graph.users(names[-1])
            for user in graph.users(state.name)
            if (step := _step(graph, names[-1], user.name)) is not None
            and (step.passed, step.place) == (passed, len(steps))
        ),
        None,
    )
    first = None if _is_zero(graph, names[0]) else names[0]
    is_left = last is not None and (last in graph.outputs or graph.users(last))
    return Passing(
        states=passed.states,
        chunk=chunk,
        source=passed.source,
        axis=passed.axis,
        before=node.name,
        before_dims=tuple(range(rank)),
        last=last if is_left else None,
        last_dims=kept,
        first=first,
        first_dims=kept,
        pairs=passed.pairs,
        sums=False,
    )


@dataclass(frozen=True, slots=True)
class _Passed:
    """What all steps have in common, as in `Passing`."""

    states: str
    chunk: int
    source: str
    axis: int
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """h * exp(total of chunk `place`) + states[`place`]."""

    place: int
    passed: _Passed


def _step(graph: OpGraph, before: str, name: str) -> _Step | None:
    node = graph.node(name)
    if node is None or node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return None
    for carried, fed in (node.args, node.args[::-1]):
        if not isinstance(carried, Ref) or not isinstance(fed, Ref):
            return None
        product = graph.node(carried.name)
        state = read_view(graph, fed.name)
        if product is None or product.target != "aten.mul.Tensor" or len(state.fixed) != 1:
            continue
        names = [each.name for each in product.args if isinstance(each, Ref)]
        if before not in names or len(names) != 2:
            continue
        decay = read_decay(graph, names[1 - names.index(before)])
        ((chunk, place),) = state.fixed.items()
        rank = len(graph.spec(state.base).shape)
        if decay is None or decay.kind != "chunk" or len(decay.fixed) != 1:
            continue
        if state.dims != tuple(dim for dim in range(rank) if dim != chunk):
            continue
        ((of_chunks, seen),) = decay.fixed
        missing = rank - 1 - len(decay.dims)
        if seen != place or missing < 0:
            continue
        pairs = [(of_chunks, chunk)]
        pairs += [
            (dim, state.dims[position + missing])
            for position, dim in enumerate(decay.dims)
            if dim is not None
        ]
        return _Step(place, _Passed(state.base, chunk, decay.source, decay.axis, tuple(pairs)))
    return None
