"""What a product does to an operand while it is read.

    gate = torch.sigmoid(x) * mask          # never written: the product makes it of tiles of x
    return gate @ weight

    self.linear(self.embedding(tokens))     # nor is this: rows of x come through an index

`grow_opening` finds the pointwise nodes of which an operand is made and that nothing else reads,
and writes them as what follows a product is written: statements on `acc`, here a tile of the
source, as fp32. The source may be of 8-bit integers that a node casts, as quantised weights are.
What parameters alone decide is made once and kept, so it is left as it is, unless the source is
narrower than what is made of it. `gather_rows` reads the rows of a table in the place of a source
that an embedding made of them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from kmem.codegen.chains.epilogue import LOAD_OPERAND, MAX_OPERANDS, Epilogue
from kmem.codegen.regions.pointwise import write_pointwise
from kmem.codegen.steady import kept_operands
from kmem.problem.costs.work import Work, node_work
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.expressions import Expression, order_helpers
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of
from kmem.records import DTYPE_BYTES, TensorSpec

#: Integers that fp32, and half precision, hold exactly.
_SMALL_INTEGERS = ("int8", "uint8")


@dataclass(frozen=True, slots=True)
class Opening:
    """What a product reads in the place of an operand, and what it makes of it.

    `source` is read as the operand would be, the chain's operands as those of an epilogue; `nodes`
    are those that need not run. `work` is theirs, once for each element. With `rows`, an index, the
    source is a table of which row i is that of `spec` at which the index holds i; `row_steps` are
    those of the index along both batch axes and the rows of the product. With `pointers` the chain
    itself loads what it needs of these values (unpacking.py): of `read_bytes` in all, and for each
    element up to `tile_bytes` that are copied ahead.
    """

    source: str
    spec: TensorSpec  # of the source
    nodes: tuple[str, ...] = ()
    chain: Epilogue = Epilogue()
    specs: tuple[TensorSpec, ...] = ()  # of the chain's operands
    work: Work = Work()
    rows: str = ""
    row_steps: tuple[int, ...] = ()
    pointers: tuple[str, ...] = ()
    read_bytes: int = 0
    tile_bytes: int = 0

    @property
    def beside(self) -> tuple[str, ...]:
        """What is read beside the source, in the order of a launcher's parameters."""
        return (*self.chain.operands, *self.pointers, *([self.rows] if self.rows else ()))


def leave_closed(graph: OpGraph, name: str) -> Opening:
    """An operand that is read as it is."""
    return Opening(name, graph.spec(name))


def open_shared(
    graph: OpGraph, name: str, products: Collection[Node], taken: Collection[str] = ()
) -> Opening | None:
    """The opening of an operand that these products read, and nothing else; None if there is none.

    Args:
        name: what each of the products reads.
        taken: nodes that may not join.
    """
    if any([*product.refs()].count(name) != 1 for product in products):
        return None  # what is read in two ways has to be there
    names = {product.name for product in products}
    opening = gather_rows(graph, grow_opening(graph, name, names, taken), names, taken)
    return opening if opening.nodes else None


def grow_opening(
    graph: OpGraph, name: str, products: Collection[str], taken: Collection[str] = ()
) -> Opening:
    """The opening of an operand; one without nodes where nothing can be done while it is read.

    Args:
        name: what the products read.
        taken: nodes that may not join.
    """
    spec = graph.spec(name)

    def joins(node: Node) -> bool:
        is_alike = isinstance(node.output, TensorSpec) and node.spec.shape == spec.shape
        return is_alike and node.name not in taken and _joins(graph, node)

    members = grow_operand(graph, name, products, joins, graph.users)
    if not members:
        return leave_closed(graph, name)
    chosen = {member.name for member in members}
    leaves = dict.fromkeys(leaf for node in members for leaf in node.refs() if leaf not in chosen)
    sources = [
        leaf
        for leaf in leaves
        if graph.spec(leaf).shape == spec.shape
        and (graph.spec(leaf).dtype in FLOATS or _is_cast_alone(graph, leaf, members))
    ]
    if not sources or len(leaves) > MAX_OPERANDS + 1:
        return leave_closed(graph, name)
    # the narrowest, of which an element is read for each of the operand
    source = min(sources, key=lambda leaf: DTYPE_BYTES[graph.spec(leaf).dtype])
    is_narrow = DTYPE_BYTES[graph.spec(source).dtype] < DTYPE_BYTES[spec.dtype]
    if kept_operands(graph, (name,))[0].kept and not is_narrow:
        return leave_closed(graph, name)
    return _write(graph, source, spec, members) or leave_closed(graph, name)


def gather_rows(
    graph: OpGraph, opening: Opening, products: Collection[str], taken: Collection[str] = ()
) -> Opening:
    """An opening that reads the rows of a table where these were only copied for the products."""
    node = graph.node(opening.source)
    readers = {*products, *opening.nodes}
    if node is None or node.name in taken or node.name in graph.outputs:
        return opening
    table, index = _gathered(node)
    if not table or any(user.name not in readers for user in graph.users(node.name)):
        return opening
    is_plain = graph.spec(index).is_contiguous and len(graph.spec(table).shape) == 2
    if not is_plain or graph.spec(index).dtype not in ("int64", "int32"):
        return opening
    return replace(opening, source=table, rows=index, nodes=(node.name, *opening.nodes))


def _gathered(node: Node) -> tuple[str, str]:
    """The table and the index of rows that a node copies; two empty names if it does not."""
    given = [argument.name for argument in node.args if isinstance(argument, Ref)]
    copies = node.target == "aten.embedding.default"
    copies |= node.target == "aten.index_select.default" and node.args[1] == 0
    return (given[0], given[1]) if copies and len(given) == 2 and not node.kwargs else ("", "")


def grow_operand(
    graph: OpGraph,
    name: str,
    products: Collection[str],
    joins: Callable[[Node], bool],
    readers: Callable[[str], Iterable[Node]],
) -> list[Node]:
    """Nodes of which an operand is made, and that nothing else reads, in graph order.

    Args:
        name: of the operand.
        joins: whether a node may be one of them.
        products: that read it.
        readers: the nodes that count as reading a value; the products, or one's own, are allowed.
    """
    joined = {*products}
    members: list[Node] = []
    seen: set[str] = set()
    waiting: list[tuple[int, str]] = []

    def add(value: str) -> None:
        if value not in seen and graph.node(value) is not None:
            seen.add(value)
            heappush(waiting, (-graph.place(value), value))

    add(name)
    while waiting:
        node = graph.node(heappop(waiting)[1])
        assert node is not None
        is_inner = all(user.name in joined for user in readers(node.name))
        if node.name not in graph.outputs and is_inner and joins(node):
            joined.add(node.name)
            members.append(node)
            for value in node.refs():
                add(value)
    return members[::-1]


def _joins(graph: OpGraph, node: Node) -> bool:
    return _casts_integers(graph, node) or write_pointwise(graph, node, str) is not None


def _casts_integers(graph: OpGraph, node: Node) -> bool:
    is_cast = lowering_of(graph, node) is Layout.CAST and node.spec.dtype in FLOATS
    return is_cast and graph.spec(node.refs()[0]).dtype in _SMALL_INTEGERS


def _is_cast_alone(graph: OpGraph, leaf: str, members: Sequence[Node]) -> bool:
    """Whether a leaf is of small integers of which nodes only read the value."""
    readers = [node for node in members if leaf in tuple(node.refs())]
    return all(_casts_integers(graph, node) for node in readers)


def _write(
    graph: OpGraph, source: str, made: TensorSpec, members: Sequence[Node]
) -> Opening | None:
    """The statements of members on a tile of the source, the last of which has the operand's type.

    Returns: None if another leaf cannot be read beside the source.
    """
    variables = {source: "acc"}
    operands: list[str] = []
    statements: list[tuple[str, str]] = []
    written: list[Expression] = []

    def name_of(name: str) -> str:
        if name not in variables:
            variables[name] = f"x{len(operands)}"
            operands.append(name)
        return variables[name]

    for index, node in enumerate(members):
        if _casts_integers(graph, node):
            variables[node.name] = name_of(node.refs()[0])
            continue
        expression = write_pointwise(graph, node, name_of)
        assert expression is not None, "_grow takes what can be written"
        written.append(expression)
        statements.append((f"y{index}", expression.text))
        variables[node.name] = f"y{index}"
    specs = tuple(graph.spec(name) for name in operands)
    if any(spec.dtype not in FLOATS or len(spec.shape) > len(made.shape) for spec in specs):
        return None
    statements.append(("given", f"({variables[members[-1].name]}).to(tl.{made.dtype})"))
    called = order_helpers(helper for expression in written for helper in expression.helpers)
    loads = [LOAD_OPERAND] if operands else []
    chain = Epilogue(tuple(statements), tuple(operands), (*called, *loads))
    work = [node_work(graph, node) for node in members]
    return Opening(
        source,
        graph.spec(source),
        tuple(node.name for node in members),
        chain,
        specs,
        Work(sum(each.simple for each in work), sum(each.special for each in work)),
    )
