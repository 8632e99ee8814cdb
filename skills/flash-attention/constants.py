"""Masks that a forward makes of constants, read as bands of the scores.

    torch.ones(n, n, dtype=torch.bool).triu(1)       true where column - row >= 1
    torch.arange(n)[:, None] >= torch.arange(n)      true where column - row <= 0

A graph is of one size, so what is found holds wherever the graph does. What is read from buffers,
inputs and parameters may change and is no constant.

Covered: the operators of `_MAKERS`, `_VIEWS` and `_POINTWISE`; whole numbers up to 256 and
infinities in floating values, for every dtype holds these. Not covered: values that an operator
changes in place.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kmem.problem.graph import Arg, Node, OpGraph, Ref
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of
from kmem.records import TensorSpec

from .bands import Band, join_intervals
from .pieces import (
    AXES,
    Pieces,
    Unknown,
    absolute,
    add,
    along,
    choose,
    compare,
    flat,
    logic,
    multiply,
    size,
    triangle,
)

#: Of whole numbers that bfloat16 holds; of sums of places that float32 and int32 hold.
_LARGEST, _FURTHEST = 256, 2**24
_WIDE = ("int64", "int32", "float32", "float64")


def read_band(graph: OpGraph, mask: str, scores: TensorSpec, hides: float) -> Band | None:
    """Which keys a mask lets a query see; None if it is no constant or no band.

    Args:
        scores: (..., queries, keys), to which the mask is broadcast.
        hides: what the mask holds where it hides; elsewhere it holds another truth value, or 0.
    """
    value = read_pieces(graph, mask, scores.shape)
    if value is None:
        return None
    shows = 0 if math.isinf(hides) else not hides
    held = {line for _, line in value.lines}
    if not held <= {(0, 0, hides), (0, 0, shows)}:
        return None
    seen = ((start, end - 1) for start, end, line in value.spans() if line[2] == shows)
    return join_intervals(seen, *scores.shape[-2:])


def read_pieces(graph: OpGraph, name: str, shape: Sequence[int]) -> Pieces | None:
    """A constant at every row and column, broadcast to a shape; None if it is none."""
    whole = graph.whole
    try:
        return _Reader(whole).read(name).widened(whole.spec(name).shape, shape)
    except Unknown:
        return None


def is_cast(node: Node) -> bool:
    """Whether a node makes of a value the same in another dtype, or a copy of it."""
    return _VIEWS.get(node.target) is _identity


def made_for(
    graph: OpGraph,
    mask: str,
    readers: Iterable[str],
    also: Iterable[str] = (),
    without: str | None = None,
) -> set[str]:
    """The nodes that make a constant and that nothing but `readers` needs, with their checks.

    Args:
        also: further nodes that may be among them.
        without: a value that is read as it is.
    """
    further = {*also}
    taken, needed = {*readers}, {mask}
    for node in reversed(graph.nodes):
        if node.name not in needed or node.name in graph.outputs or node.name == without:
            continue
        if not _is_known(node) and node.name not in further:
            continue
        checks = checks_of(graph, node.name)
        if {user.name for user in graph.users(node.name)} <= taken | checks:
            taken |= {node.name, *checks}
            needed.update(node.refs())
    return taken - {*readers}


def checks_of(graph: OpGraph, name: str) -> set[str]:
    """The nodes that check what is known of a value of the graph, as a cast leaves them."""
    users = graph.users(name)
    return {user.name for user in users if lowering_of(graph, user) is Layout.MARKER}


def _is_known(node: Node) -> bool:
    # one that is like another value reads that, which the kernel need not
    is_made = node.target in _MAKERS and not node.refs()
    return is_made or node.target in _VIEWS or _named(node.target) in _POINTWISE


class _Reader:
    """Reads values of one graph, each once. All methods raise Unknown."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.changed = graph.once(_changed_in_place)
        self.known: dict[str, Pieces] = {}

    def read(self, name: str) -> Pieces:
        if name not in self.known:
            if name in self.changed:
                raise Unknown
            node = self.graph.node(name)
            value = self._constant(name) if node is None else self._made(node)
            self.known[name] = _held(value, self.graph.spec(name))
        return self.known[name]

    def _constant(self, name: str) -> Pieces:
        placeholder = self.graph.placeholder(name)
        value = placeholder.value if placeholder and placeholder.kind == "constant" else None
        if not isinstance(value, int | float):
            raise Unknown
        return flat(value)

    def _made(self, node: Node) -> Pieces:
        if node.target in _MAKERS:
            return _MAKERS[node.target](node.args)
        source = node.args[0] if node.args else None
        if node.target in _VIEWS and isinstance(source, Ref):
            return _VIEWS[node.target](self.read(source.name), self.graph.spec(source.name), node)
        compute = _POINTWISE.get(_named(node.target))
        if compute is None or node.kwargs.get("alpha", 1) != 1:
            raise Unknown
        if "bitwise" in node.target and node.spec.dtype != "bool":
            raise Unknown
        return compute(*(self._operand(arg, node.spec) for arg in node.args))

    def _operand(self, arg: Arg, result: TensorSpec) -> Pieces:
        if isinstance(arg, Ref):
            return self.read(arg.name).widened(self.graph.spec(arg.name).shape, result.shape)
        if not isinstance(arg, int | float):
            raise Unknown
        return flat(arg)


def _changed_in_place(graph: OpGraph) -> frozenset[str]:
    """Values that an operator changes where they lie, with all that they may be a view of."""
    found: set[str] = set()
    for node in graph.nodes:
        changed: Node | None = node if node.is_in_place else None
        while changed is not None:
            found.add(changed.name)
            source = changed.args[0] if changed.args else None
            changed = graph.node(source.name) if isinstance(source, Ref) else None
            if changed is None and isinstance(source, Ref):
                found.add(source.name)
    return frozenset(found)


def _held(value: Pieces, spec: TensorSpec) -> Pieces:
    """A value as its dtype holds it."""
    if spec.dtype == "bool":
        return compare(operator.ne, value, flat(0))
    reach = max(size(spec.shape, axis) for axis in AXES)
    for _, (by_row, by_column, plus) in value.lines:
        is_sloped = bool(by_row or by_column)
        if math.isinf(plus) and not is_sloped and "float" in spec.dtype:
            continue
        most = _FURTHEST if spec.dtype in _WIDE and "float" not in spec.dtype else _LARGEST
        if is_sloped:
            most = _FURTHEST if spec.dtype in _WIDE else -1
        if not math.isfinite(plus) or plus != int(plus):
            raise Unknown
        if abs(plus) + (abs(by_row) + abs(by_column)) * reach > most:
            raise Unknown
        if plus not in range(128) and spec.dtype in ("int8", "uint8", "int16"):
            raise Unknown
    return value


def _named(target: str) -> str:
    """An operator's name without overload and underscores: aten.__and__.Tensor is "and"."""
    return target.removeprefix("aten.").split(".")[0].strip("_")


def _integer(arg: Arg) -> int:
    if not isinstance(arg, int):
        raise Unknown
    return arg


def _number(arg: Arg) -> Pieces:
    if not isinstance(arg, int | float):
        raise Unknown
    return flat(arg)


def _range(args: Sequence[Arg]) -> Pieces:
    """torch.arange of an end, of a start and an end, or of these and a step."""
    numbers = [_integer(arg) for arg in args]
    return along(numbers[2] if len(numbers) > 2 else 1, numbers[0] if len(numbers) > 1 else 0)


def _identity(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    return value


def _triangle(compared: Callable[[float, float], bool]) -> "View":
    def read(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
        return triangle(value, compared, _integer((*node.args, 0)[1]))

    return read


def _repeated(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    return value.widened(spec.shape, node.spec.shape)


def _viewed(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    """A view that adds or drops axes of one place."""
    old = [axis for axis, places in enumerate(spec.shape) if places != 1]
    new = [axis for axis, places in enumerate(node.spec.shape) if places != 1]
    if [spec.shape[axis] for axis in old] != [node.spec.shape[axis] for axis in new]:
        raise Unknown
    moved = dict(zip(old, new, strict=True))
    places = [moved.get(axis) for axis in range(len(spec.shape))]
    return value.placed(spec.shape, node.spec.shape, places)


def _turned(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    """Axes in another order: all of them, two, or the two of a matrix."""
    rank = len(spec.shape)
    places: list[int | None] = list(range(rank))
    if node.target == "aten.permute.default":
        order = node.args[1]
        if not isinstance(order, tuple):
            raise Unknown
        for place, axis in enumerate(order):
            places[_integer(axis)] = place
    else:
        first, second = (_integer(axis) % rank for axis in (*node.args[1:], 0, 1)[:2])
        places[first], places[second] = second, first
    return value.placed(spec.shape, node.spec.shape, places)


def _selected(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    rank = len(spec.shape)
    gone = _integer(node.args[1]) % rank
    places = [None if axis == gone else axis - (axis > gone) for axis in range(rank)]
    return value.placed(spec.shape, node.spec.shape, places)


def _sliced(value: Pieces, spec: TensorSpec, node: Node) -> Pieces:
    given = dict(zip(("dim", "start", "end", "step"), node.args[1:], strict=False))
    rank, start = len(spec.shape), given.get("start")
    axis = _integer(given.get("dim", 0)) % rank - rank
    first = 0 if start is None else _integer(start)
    if given.get("step", 1) != 1:
        raise Unknown
    first = max(0, first + spec.shape[axis]) if first < 0 else first
    return value.moved(axis, first) if axis in AXES else value


View = Callable[[Pieces, TensorSpec, Node], Pieces]

_MAKERS: Mapping[str, Callable[[Sequence[Arg]], Pieces]] = {
    **{f"aten.{kind}.default": lambda args: flat(1) for kind in ("ones", "ones_like", "new_ones")},
    **{
        f"aten.{kind}.default": lambda args: flat(0)
        for kind in ("zeros", "zeros_like", "new_zeros")
    },
    "aten.scalar_tensor.default": lambda args: _number(args[0]),
    "aten.full.default": lambda args: _number(args[1]),
    "aten.full_like.default": lambda args: _number(args[1]),
    "aten.new_full.default": lambda args: _number(args[2]),
    "aten.arange.default": _range,
    "aten.arange.start": _range,
    "aten.arange.start_step": _range,
}

_VIEWS: Mapping[str, View] = {
    "aten.tril.default": _triangle(operator.le),
    "aten.triu.default": _triangle(operator.ge),
    **{
        f"aten.{name}": _identity
        for name in (
            "to.dtype",
            "to.device",
            "to.dtype_layout",
            "to.other",
            "type_as.default",
            "clone.default",
            "contiguous.default",
            "detach.default",
            "alias.default",
            "lift_fresh_copy.default",
        )
    },
    **{
        f"aten.{name}": _viewed
        for name in ("view.default", "reshape.default", "unsqueeze.default", "squeeze.default")
    },
    "aten.squeeze.dim": _viewed,
    "aten.expand.default": _repeated,
    "aten.broadcast_to.default": _repeated,
    **{
        f"aten.{name}": _turned
        for name in (
            "transpose.int",
            "swapaxes.default",
            "permute.default",
            "t.default",
        )
    },
    "aten.select.int": _selected,
    "aten.slice.Tensor": _sliced,
}

_POINTWISE: Mapping[str, Callable[..., Pieces]] = {
    **{
        name: partial(compare, getattr(operator, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "add": add,
    "sub": lambda x, y: add(x, y, -1),
    "rsub": lambda x, y: add(y, x, -1),
    "neg": lambda x: add(flat(0), x, -1),
    "mul": multiply,
    "abs": absolute,
    "logical_not": partial(logic, operator.not_),
    "bitwise_not": partial(logic, operator.not_),
    **{
        name: partial(logic, lambda x, y: bool(x and y))
        for name in ("and", "bitwise_and", "logical_and")
    },
    **{
        name: partial(logic, lambda x, y: bool(x or y))
        for name in ("or", "bitwise_or", "logical_or")
    },
    **{name: partial(logic, operator.xor) for name in ("xor", "bitwise_xor", "logical_xor")},
    "where": choose,
    "masked_fill": lambda x, mask, number: choose(mask, number, x),
}
