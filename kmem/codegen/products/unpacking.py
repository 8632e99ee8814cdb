"""What a product does to packed weights while it reads them.

    w = (packed[:, None] >> shifts[None, :, None]) & 15         # eight numbers in an int32
    w = ((w.view(groups, -1, n) - zeros[:, None]) * scales[:, None]).view(k, n)
    return x @ w                                                # none of this is ever written

`grow_unpacked` follows an operand back through shifts, masks, arithmetic, casts, views, repeats,
stacks and concatenations, whatever they are called in the module, to tensors that are smaller than
it. Each element is then an expression of its two places (places.py): the function that the product
is handed loads what it needs of these tensors, and makes the tile of it.

Covered: integers, whose arithmetic wraps as eager's does; pointwise operators. Not covered: views
that read other bits, operands with batch axes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.products.places import ZERO, Place, along, computed, reshape_places
from kmem.codegen.products.prologue import Opening, grow_operand
from kmem.problem.costs.work import Work
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.expressions import (
    Helper,
    as_expression,
    order_helpers,
    write_number,
)
from kmem.problem.operators.row import REQUIRED, Layout, Pointwise
from kmem.problem.operators.table import find_operator, lowering_of
from kmem.records import DTYPE_BYTES, TensorSpec

#: Integers; kernels compute on all but the last in 32 bits.
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
_BINARY = {
    "__rshift__": ">>",
    "bitwise_right_shift": ">>",
    "__lshift__": "<<",
    "bitwise_left_shift": "<<",
    "__and__": "&",
    "bitwise_and": "&",
    "__or__": "|",
    "bitwise_or": "|",
    "add": "+",
    "sub": "-",
    "mul": "*",
}
#: What rounds towards minus infinity in torch and towards zero in a kernel.
_UNSIGNED = {"floor_divide": "//", "remainder": "%"}
_VIEWS = frozenset(
    {
        *("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten"),
        *("contiguous", "clone", "alias", "detach"),
    }
)
#: Pointers of one function, and elements that 32-bit offsets reach.
_MOST_SOURCES, _MOST_ELEMENTS = 6, 2**31
#: Bytes that an asynchronous copy takes at least.
_LEAST_COPY = 4
#: Elements of the operand for each integer that is read, at least: fewer are not packed.
_PACKED = 2
#: Bytes of the operand for each byte of narrow integers, at least.
_NARROW = 2


class _Unwritable(Exception):  # noqa: N818 - no error: the operand is then read as it is
    """An operator whose elements this cannot tell."""


def grow_unpacked(
    graph: OpGraph,
    name: str,
    letters: str,
    product: Node,
    taken: Collection[str] = (),
    *,
    narrow: bool = False,
) -> Opening | None:
    """The opening of a packed operand; None where it is not packed, or cannot be written.

    Args:
        name: what the product reads, with two dimensions.
        letters: of its dimensions: "k" along the sum, "n" along the columns.
        taken: nodes that may not join.
        narrow: whether integers of half the operand's bytes count as packed, one for each element:
            scaled by groups within its rows they are not what an operand that is read as it lies is
            made of.
    """
    if sorted(letters) != ["k", "n"] or graph.node(name) is None:
        return None

    def joins(node: Node) -> bool:
        is_one = isinstance(node.output, TensorSpec) and node.name not in taken
        return is_one and _kind(graph, node) is not None

    def readers(value: str) -> list[Node]:
        users = graph.users(value)
        return [user for user in users if lowering_of(graph, user) is not Layout.MARKER]

    members = grow_operand(graph, name, {product.name}, joins, readers)
    spec = graph.spec(name)
    writing = _Writing(graph, {node.name: node for node in members})
    places = [along(letter, size) for letter, size in zip(letters, spec.shape, strict=True)]
    try:
        value = writing.value(name, places)
    except _Unwritable:
        return None
    sources = [graph.spec(source) for source in writing.sources]
    integers = [source for source in sources if source.dtype in _INTEGERS]
    is_packed = writing.unpacks and any(_PACKED * source.numel <= spec.numel for source in integers)
    is_packed |= narrow and any(_NARROW * source.bytes <= spec.bytes for source in integers)
    if not is_packed or len(sources) > _MOST_SOURCES:
        return None
    shape = "(rows.shape[0], columns.shape[0])"
    given = f"tl.broadcast_to({value}, {shape}).to(tl.{spec.dtype})"
    chain = Epilogue((*writing.lines, ("given", given)), (), order_helpers(writing.helpers))
    markers = [
        user.name
        for node in members
        for user in graph.users(node.name)
        if lowering_of(graph, user) is Layout.MARKER
    ]
    return Opening(
        writing.sources[0],
        spec,
        (*(node.name for node in members), *dict.fromkeys(markers)),
        chain,
        work=Work(simple=float(spec.numel * len(writing.lines))),
        pointers=tuple(writing.sources),
        tile_bytes=writing.tile_bytes,
        read_bytes=sum(source.bytes for source in sources),
    )


def _kind(graph: OpGraph, node: Node) -> str | None:
    """Which method writes a node; None if none does."""
    packet = node.target.split(".")[1] if "." in node.target else node.target
    sources = [graph.node(name) for name in node.refs()]
    if any(source is not None and isinstance(source.output, tuple) for source in sources):
        return None
    kinds = {graph.spec(name).dtype for name in node.refs()}
    if not kinds <= {*FLOATS, *_INTEGERS} or node.is_in_place:
        return None
    if packet in _KINDS:
        return _KINDS[packet]
    if packet in _VIEWS and kinds == {node.spec.dtype}:
        return "view"
    if lowering_of(graph, node) is Layout.CAST:
        return "cast" if node.spec.dtype in (*FLOATS, *_INTEGERS) else None
    if node.spec.dtype in _INTEGERS:
        is_known = packet in _BINARY or packet in _UNSIGNED and node.spec.dtype == "uint8"
        return "integer" if is_known and len(node.args) == 2 and not node.kwargs else None
    lowering = lowering_of(graph, node)
    is_float = isinstance(lowering, Pointwise) and not lowering.flags
    return "float" if is_float and node.spec.dtype in FLOATS else None


_KINDS = {
    "arange": "arange",
    "expand": "expand",
    "expand_as": "expand",
    "permute": "permute",
    "transpose": "transpose",
    "t": "transpose",
    "repeat_interleave": "repeat",
    "stack": "stack",
    "cat": "concatenate",
}


@dataclass
class _Writing:
    """The statements that make an element, from its places `k` and `n`."""

    graph: OpGraph
    members: Mapping[str, Node]
    lines: list[tuple[str, str]] = field(
        default_factory=lambda: [("k", "rows[:, None]"), ("n", "columns[None, :]")]
    )
    helpers: list[Helper] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    unpacks: bool = False  # whether integers are computed with
    tile_bytes: int = 0  # of what is loaded for each element, and may be copied ahead
    known: dict[tuple[str, tuple[str, ...]], str] = field(default_factory=dict)

    def value(self, name: str, places: Sequence[Place]) -> str:
        """The variable of a value at places along its dimensions, as int32, int64 or fp32."""
        key = (name, tuple(place.text for place in places))
        if key not in self.known:
            node = self.members.get(name)
            if node is None:
                self.known[key] = self._load(name, places)
            else:
                method: Callable[[Node, Sequence[Place]], str] = getattr(
                    self, f"_{_kind(self.graph, node)}"
                )
                self.known[key] = method(node, places)
        return self.known[key]

    def _name(self, text: str) -> str:
        self.lines.append((f"v{len(self.lines)}", text))
        return self.lines[-1][0]

    def _load(self, name: str, places: Sequence[Place]) -> str:
        spec = self.graph.spec(name)
        if spec.dtype not in (*FLOATS, *_INTEGERS) or spec.numel >= _MOST_ELEMENTS:
            raise _Unwritable
        if name not in self.sources:
            self.sources.append(name)
        terms = [
            f"({place.text}) * {stride}"
            for place, stride in zip(places, spec.stride, strict=True)
            if place.size > 1 and stride != 0
        ]
        axes = frozenset().union(*(place.axes for place in places))
        masks = [text for axis, text in (("k", "k < M"), ("n", "n < N")) if axis in axes]
        inside = " & ".join(f"({mask})" for mask in masks)
        mask = f", mask={inside}, other=0" if masks else ""
        where = " + ".join([f"extra[{self.sources.index(name)}]", *terms])
        width = DTYPE_BYTES[spec.dtype]
        self.tile_bytes += width if len(axes) > 1 and width >= _LEAST_COPY else 0
        wide = "float32" if spec.dtype in FLOATS else _computed(spec.dtype)
        return self._name(f"tl.load({where}{mask}).to(tl.{wide})")

    def _input(self, node: Node, value: object, places: Sequence[Place]) -> str:
        """An input of a pointwise node, which broadcasts to its shape."""
        if not isinstance(value, Ref):
            raise _Unwritable
        shape = self.graph.spec(value.name).shape
        own = places[len(places) - len(shape) :]
        own = [ZERO if size == 1 else place for size, place in zip(shape, own, strict=True)]
        return self.value(value.name, own)

    def _integer(self, node: Node, places: Sequence[Place]) -> str:
        packet = node.target.split(".")[1]
        self.unpacks = True
        texts = []
        for argument in node.args:
            is_number = isinstance(argument, int) and not isinstance(argument, bool)
            texts.append(str(argument) if is_number else self._input(node, argument, places))
        sign = _BINARY.get(packet) or _UNSIGNED[packet]
        if node.spec.dtype == "int64":
            is_value = [isinstance(argument, Ref) for argument in node.args]
            texts = [
                f"{text}.to(tl.int64)" if is_one else text
                for text, is_one in zip(texts, is_value, strict=True)
            ]
        return self._name(_wrapped(f"({texts[0]}) {sign} ({texts[1]})", node.spec.dtype))

    def _float(self, node: Node, places: Sequence[Place]) -> str:
        operator = find_operator(node.target)
        call = operator.call(self.graph, node)
        lowering = operator.lowering_of(call)
        if set(call.arguments) != set(operator.parameters) or REQUIRED in call.arguments.values():
            raise _Unwritable
        texts = []
        for argument in call.arguments.values():
            if isinstance(argument, Ref):
                text = self._input(node, argument, places)
                is_float = self.graph.spec(argument.name).dtype in FLOATS
                texts.append(text if is_float else f"({text}).to(tl.float32)")
            elif argument is None or isinstance(argument, str):
                texts.append(argument)
            elif isinstance(argument, int | float):
                texts.append(write_number(argument))
            else:
                raise _Unwritable
        written = lowering.write(*texts)
        if written is None:
            raise _Unwritable
        expression = as_expression(written)
        self.helpers += expression.helpers
        return self._name(expression.text)

    def _cast(self, node: Node, places: Sequence[Place]) -> str:
        (source,) = node.refs()
        text = self._input(node, Ref(source), places)
        dtype, before = node.spec.dtype, self.graph.spec(source).dtype
        if dtype in FLOATS:
            narrow = "" if dtype == "float32" else f".to(tl.{dtype})"
            return self._name(f"({text}).to(tl.float32){narrow}.to(tl.float32)")
        if before in FLOATS:
            raise _Unwritable
        return self._name(_wrapped(text, dtype))

    def _view(self, node: Node, places: Sequence[Place]) -> str:
        (source, *_) = node.refs()
        shape = self.graph.spec(source).shape
        if prod(shape) != prod(node.spec.shape):
            raise _Unwritable
        return self.value(source, reshape_places(places, node.spec.shape, shape))

    def _expand(self, node: Node, places: Sequence[Place]) -> str:
        return self._input(node, node.args[0], places)

    def _permute(self, node: Node, places: Sequence[Place]) -> str:
        rank = len(places)
        if not isinstance(node.args[1], tuple):
            raise _Unwritable
        dims = [dim % rank for dim in node.args[1]]
        return self._moved(node, [places[dims.index(dim)] for dim in range(rank)])

    def _transpose(self, node: Node, places: Sequence[Place]) -> str:
        dims = node.args[1:] or (0, 1)
        first, second = (dim % len(places) for dim in dims)
        moved = list(places)
        moved[first], moved[second] = places[second], places[first]
        return self._moved(node, moved)

    def _moved(self, node: Node, places: Sequence[Place]) -> str:
        return self.value(node.refs()[0], places)

    def _repeat(self, node: Node, places: Sequence[Place]) -> str:
        count, dim = (*node.args[1:], None)[:2]
        if not isinstance(count, int) or not isinstance(dim, int) or node.kwargs:
            raise _Unwritable
        dim %= len(places)
        size = self.graph.spec(node.refs()[0]).shape[dim]
        parts = reshape_places([places[dim]], [size * count], [size, count])
        return self._moved(node, [*places[:dim], parts[0], *places[dim + 1 :]])

    def _stack(self, node: Node, places: Sequence[Place]) -> str:
        names, dim = _list_of(node)
        dim %= len(places)
        own = [*places[:dim], *places[dim + 1 :]]
        values = [self.value(name, own) for name in names]
        chosen = values[-1]
        for index, value in reversed([*enumerate(values[:-1])]):
            chosen = f"tl.where(({places[dim].text}) == {index}, {value}, {chosen})"
        return self._name(chosen)

    def _concatenate(self, node: Node, places: Sequence[Place]) -> str:
        names, dim = _list_of(node)
        dim %= len(places)
        place, first = places[dim], 0
        chosen = ""
        for name in names:
            size = self.graph.spec(name).shape[dim]
            end = first + size
            inside = f"({place.text} >= {first}) & ({place.text} < {end})"
            at = computed(f"tl.where({inside}, {place.text} - {first}, 0)", size, place)
            value = self.value(name, [*places[:dim], at, *places[dim + 1 :]])
            chosen = f"tl.where({inside}, {value}, {chosen})" if chosen else value
            first = end
        return self._name(chosen)

    def _arange(self, node: Node, places: Sequence[Place]) -> str:
        numbers = [argument for argument in node.args if isinstance(argument, int)]
        if len(numbers) != len(node.args) or node.spec.dtype not in _INTEGERS:
            raise _Unwritable
        start, step = (numbers[0], 1) if len(numbers) > 1 else (0, 1)
        step = numbers[2] if len(numbers) > 2 else step
        wide = _computed(node.spec.dtype)
        if places[0].size == 1:
            return self._name(str(start))
        return self._name(f"(({places[0].text}) * {step} + {start}).to(tl.{wide})")


def _list_of(node: Node) -> tuple[list[str], int]:
    """The values that are put together, and along which dimension."""
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    return list(node.refs()), dim


def _computed(dtype: str) -> str:
    """In what a kernel computes on integers."""
    return "int64" if dtype == "int64" else "int32"


def _wrapped(text: str, dtype: str) -> str:
    """An integer as its type holds it."""
    if dtype == "uint8":
        return f"(({text}) & 255).to(tl.int32)"
    return f"({text}).to(tl.{dtype}).to(tl.{_computed(dtype)})"
