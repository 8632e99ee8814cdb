"""What follows a matrix product element by element and is written with it.

That is bias, activation, scaling, residual, triangle. `grow_epilogue` finds the nodes;
`write_epilogue` turns them into statements on the tile of sums, named by position and not by node,
so that equal chains give equal text; ports.py makes them a function that kernels which store tiles
are handed. products/contraction.py decides what is a product, products/matmul.py holds the kernels,
regions/pointwise.py writes the expression of each node.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from kmem.codegen.regions.pointwise import write_pointwise
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.expressions import Expression, order_helpers, write_number
from kmem.problem.operators.row import Convolution, Product
from kmem.problem.operators.table import lowering_of
from kmem.records import TensorSpec, content_hash

#: More operands than this would need a pointer and a tile of registers each beside the sums.
MAX_OPERANDS = 4

LOAD_OPERAND = (
    "kmem_load_operand",
    '''
@triton.jit
def kmem_load_operand(
    operand, outer, inner, rows, columns, M: tl.constexpr, N: tl.constexpr,
    OUTER: tl.constexpr, INNER: tl.constexpr, STEP_M: tl.constexpr, STEP_N: tl.constexpr,
):
    """What an epilogue reads for a tile, as fp32: one row, one column or one value where the
    operand broadcasts.
    """
    operand += outer.to(tl.int64) * OUTER + inner.to(tl.int64) * INNER
    if STEP_M == 0 and STEP_N == 0:
        values = tl.full((1, 1), tl.load(operand), operand.dtype.element_ty)
    elif STEP_M == 0:
        values = tl.load(operand + columns * STEP_N, mask=columns < N, other=0.0)[None, :]
    elif STEP_N == 0:
        values = tl.load(operand + rows * STEP_M, mask=rows < M, other=0.0)[:, None]
    else:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        values = tl.load(
            operand
            + rows.to(tl.int64)[:, None] * STEP_M
            + columns.to(tl.int64)[None, :] * STEP_N,
            mask=inside,
            other=0.0,
        )
    return values.to(tl.float32)
''',
)

KEEP_TRIANGLE = (
    "kmem_keep_triangle",
    '''
@triton.jit
def kmem_keep_triangle(values, rows, columns, TRIANGLE: tl.constexpr, DIAGONAL: tl.constexpr):
    """Zeros outside the triangle, as torch.triu and torch.tril."""
    if TRIANGLE == "upper":
        values = tl.where(columns[None, :] - rows[:, None] >= DIAGONAL, values, 0.0)
    if TRIANGLE == "lower":
        values = tl.where(columns[None, :] - rows[:, None] <= DIAGONAL, values, 0.0)
    return values
''',
)


@dataclass(frozen=True, slots=True)
class Bias:
    """What a product's own operator adds: alpha * product + beta * the graph value `name`.

    The value is not read where beta is 0.
    """

    name: str
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Triangle:
    """The triu or tril behind a product: the node, "upper" or "lower", and its diagonal."""

    name: str
    keeps: str
    diagonal: int


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Statements on `acc`, the fp32 tile of sums; the last one makes what is stored.

    `places` are statements on `rows` and `columns`, where what is stored belongs elsewhere.
    Operand i is `x<i>`. `operands` are graph values, of fp32, bf16 or fp16, that broadcast to the
    product's shape. `helpers` are the jitted functions that the statements call, as (name, text).
    Operands are read at `columns` of N, or each at what `read_at` says; `before_reads` are
    statements that make these.
    """

    statements: tuple[tuple[str, str], ...] = ()
    operands: tuple[str, ...] = ()
    helpers: tuple[tuple[str, str], ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    before_reads: tuple[tuple[str, str], ...] = ()
    read_at: tuple[tuple[str, str], ...] = ()  # columns, and how many there are

    @property
    def suffix(self) -> str:
        """What the names of kernels with these statements end in; empty for a bare product."""
        said = repr((self.statements, self.places) if self.places else self.statements)
        said += repr((self.before_reads, self.read_at)) if self.read_at else ""
        return f"_{content_hash(said)[:8]}" if self.statements else ""


def grow_epilogue(graph: OpGraph, start: Node, taken: Collection[str] = ()) -> tuple[Node, ...]:
    """The longest run of pointwise nodes after a product of which only the last is read elsewhere.

    Every node has the product's shape. A node does not join if another product took it, or if it
    depends on this one by another way too.
    """
    return grow_from(graph, (start,), taken)


def grow_from(
    graph: OpGraph, starts: Sequence[Node], taken: Collection[str] = ()
) -> tuple[Node, ...]:
    """The same after several nodes of one shape, all of which the run reads."""
    start = starts[0]
    members = _reachable(graph, starts, taken)
    while members:
        last = members[-1]
        if last.spec.dtype == start.spec.dtype:
            for run in (_with_sides(graph, starts, members, taken), members):
                chosen = {node.name for node in (*starts, *run)}
                outside = {name for node in run for name in node.refs()} - chosen
                if len(outside) <= MAX_OPERANDS and not _leaks(graph, chosen, last.name):
                    return tuple(run)
        members.pop()
    return ()


def _with_sides(
    graph: OpGraph, starts: Sequence[Node], members: Sequence[Node], taken: Collection[str]
) -> list[Node]:
    """A run, with pointwise nodes that it alone reads and that depend on no product of it.

    So the derivative of an activation is computed where it is multiplied with a gradient.
    """
    chosen = {node.name for node in (*starts, *members)}
    sides: list[Node] = []
    waiting = _made(graph, members) - chosen
    while waiting:  # the last first, so that all that read a node are known
        name = max(waiting, key=graph.place)
        waiting.remove(name)
        node = graph.node(name)
        assert node is not None
        if (
            name not in taken
            and name not in graph.outputs
            and all(user.name in chosen for user in graph.users(name))
            and isinstance(node.output, TensorSpec)
            and _may_join(graph, node, starts)
        ):
            chosen.add(name)
            sides.append(node)
            waiting |= _made(graph, [node]) - chosen
    found = sorted((*members, *sides), key=lambda node: graph.place(node.name))
    read = {name for node in found for name in node.refs()} - chosen
    is_readable = all(graph.spec(name).dtype in FLOATS for name in read)
    # what follows another product is written with that
    is_apart = not any(_is_product(graph, name) for name in read)
    return found if is_readable and is_apart else list(members)


def _made(graph: OpGraph, nodes: Sequence[Node]) -> set[str]:
    """What nodes read that other nodes make."""
    return {name for node in nodes for name in node.refs() if graph.node(name) is not None}


def _is_product(graph: OpGraph, name: str) -> bool:
    node = graph.node(name)
    lowering = lowering_of(graph, node) if node is not None else None
    return isinstance(lowering, Product | Convolution)


def _reachable(graph: OpGraph, starts: Sequence[Node], taken: Collection[str]) -> list[Node]:
    """Pointwise nodes after products, in graph order.

    Every input of theirs that depends on a product is a product or one of them.
    """
    joined = {start.name for start in starts}
    own = frozenset(joined)
    members: list[Node] = []
    seen: set[str] = set()
    waiting: list[int] = []

    def add_users(name: str) -> None:
        for user in graph.users(name):
            if user.name not in seen:
                seen.add(user.name)
                heappush(waiting, graph.place(user.name))

    for start in starts:
        add_users(start.name)
    while waiting:
        node = graph.nodes[heappop(waiting)]
        others = set(node.refs()) - joined
        is_apart = not any(graph.depends_on(name, own) for name in others)
        if is_apart and node.name not in taken and _may_join(graph, node, starts):
            joined.add(node.name)
            members.append(node)
            add_users(node.name)
    return members


def _leaks(graph: OpGraph, chosen: Collection[str], last: str) -> bool:
    """Whether anything but the last node is read outside."""
    inner = set(chosen) - {last}
    return bool(inner & set(graph.outputs)) or any(
        user.name not in chosen for name in inner for user in graph.users(name)
    )


def _may_join(graph: OpGraph, node: Node, starts: Sequence[Node]) -> bool:
    shape = starts[0].spec.shape
    if write_pointwise(graph, node, str) is None or node.spec.shape != shape:
        return False
    return all(
        graph.spec(name).dtype in FLOATS or graph.spec(name).shape == shape for name in node.refs()
    )


def write_epilogue(
    graph: OpGraph,
    product: Node,
    bias: Bias | None,
    triangle: Triangle | None,
    members: Sequence[Node],
) -> Epilogue | None:
    """Statements for a product's own bias, a triu or tril, and pointwise nodes, in this order.

    Returns: None if an operand is not a float tensor.
    """
    variables = {product.name: "acc"}
    operands: list[str] = []
    statements: list[tuple[str, str]] = []

    def name_of(name: str) -> str:
        if name not in variables:
            variables[name] = f"x{len(operands)}"
            operands.append(name)
        return variables[name]

    if bias is not None:
        text = "acc" if bias.alpha == 1 else f"acc * {write_number(bias.alpha)}"
        if bias.beta != 0:
            scale = "" if bias.beta == 1 else f" * {write_number(bias.beta)}"
            text += f" + {name_of(bias.name)}{scale}"
        statements.append(("biased", text))
        variables[product.name] = "biased"
    helpers: list[tuple[str, str]] = []
    if triangle is not None:
        rest = f"rows, columns, '{triangle.keeps}', {triangle.diagonal}"
        statements.append(("kept", f"kmem_keep_triangle({variables[product.name]}, {rest})"))
        variables[triangle.name] = "kept"
        helpers.append(KEEP_TRIANGLE)
    written: list[Expression] = []
    for index, node in enumerate(members):
        expression = write_pointwise(graph, node, name_of)
        written.append(expression)
        statements.append((f"y{index}", expression.text))
        variables[node.name] = f"y{index}"
    if any(graph.spec(name).dtype not in FLOATS for name in operands):
        return None
    called = order_helpers(helper for expression in written for helper in expression.helpers)
    loads = [LOAD_OPERAND] if operands else []
    return Epilogue(tuple(statements), tuple(operands), (*called, *loads, *helpers))
