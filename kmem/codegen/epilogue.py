"""What follows a matrix product element by element and is written with it: bias, activation,
scaling, residual, triangle.

`grow_epilogue` finds the nodes; `write_epilogue` turns them into statements on the tile of sums,
named by position and not by node, so that equal chains give equal text; `specialise` puts the
statements into the kernels that store tiles. Siblings: contraction.py decides what is a product,
matmul.py holds the kernels, pointwise.py the expression of each operator.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kmem.codegen.pointwise import FLOATS, HELPERS, write_number, write_pointwise
from kmem.problem.graph import Node, OpGraph
from kmem.records import content_hash

#: More operands than this would need a pointer and a tile of registers each beside the sums.
MAX_OPERANDS = 4

#: In kernel templates: the operands' pointers and steps, as parameters of a definition and as
#: arguments of a call.
PARAMETERS = "EPILOGUE_PARAMETERS"
ARGUMENTS = "EPILOGUE_ARGUMENTS"
STATEMENTS = "    EPILOGUE_STATEMENTS\n"
_STEPS = ("OUTER", "INNER", "M", "N")

LOAD_OPERAND = (
    "kmem_load_operand",
    '''
@triton.jit
def kmem_load_operand(
    operand, outer, inner, rows, columns, M: tl.constexpr, N: tl.constexpr,
    OUTER: tl.constexpr, INNER: tl.constexpr, STEP_M: tl.constexpr, STEP_N: tl.constexpr,
):
    """What an epilogue reads for a tile, as fp32: one row or one column where the operand broadcasts."""
    operand += outer.to(tl.int64) * OUTER + inner.to(tl.int64) * INNER
    if STEP_M == 0:
        values = tl.load(operand + columns * STEP_N, mask=columns < N, other=0.0)[None, :]
    elif STEP_N == 0:
        values = tl.load(operand + rows * STEP_M, mask=rows < M, other=0.0)[:, None]
    else:
        inside = (rows < M)[:, None] & (columns < N)[None, :]
        values = tl.load(operand + rows.to(tl.int64)[:, None] * STEP_M + columns.to(tl.int64)[None, :] * STEP_N, mask=inside, other=0.0)
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
    """What a product's own operator adds: alpha * product + beta * the graph value `name`, which is
    not read where beta is 0.
    """

    name: str
    alpha: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Statements on `acc`, the fp32 tile of sums; operand i is `x<i>`, and the last statement makes
    what is stored.

    `operands` are graph values, of fp32, bf16 or fp16, that broadcast to the product's shape.
    """

    statements: tuple[tuple[str, str], ...] = ()
    operands: tuple[str, ...] = ()

    @property
    def suffix(self) -> str:
        """What the names of kernels with these statements end in; empty for a bare product."""
        return f"_{content_hash(repr(self.statements))[:8]}" if self.statements else ""


def grow_epilogue(graph: OpGraph, start: Node, taken: Collection[str] = ()) -> tuple[Node, ...]:
    """The longest run of pointwise nodes after a product of which only the last is read elsewhere;
    empty if there is none.

    Every node has the product's shape. A node does not join if another product took it, or if it
    depends on this one by another way too.
    """
    joined = {start.name}
    dependent = {start.name}
    members = []
    for node in graph.nodes:
        needed = set(node.refs()) & dependent
        if not needed:
            continue
        dependent.add(node.name)
        if needed <= joined and node.name not in taken and _may_join(graph, node, start):
            joined.add(node.name)
            members.append(node)
    while members:
        chosen = {start.name, *(node.name for node in members)}
        inner = chosen - {members[-1].name}
        leaks = any(
            user.name not in chosen for name in inner for user in graph.users(name)
        ) or inner & set(graph.outputs)
        outside = {name for node in members for name in node.refs()} - chosen
        if (
            not leaks
            and members[-1].spec.dtype == start.spec.dtype
            and len(outside) <= MAX_OPERANDS
        ):
            return tuple(members)
        members.pop()
    return ()


def _may_join(graph: OpGraph, node: Node, start: Node) -> bool:
    if write_pointwise(graph, node, str) is None or node.spec.shape != start.spec.shape:
        return False
    return all(
        graph.spec(name).dtype in FLOATS
        or name == start.name
        or graph.spec(name).shape == start.spec.shape
        for name in node.refs()
    )


def write_epilogue(
    graph: OpGraph, product: Node, bias: Bias | None, triangle: Node | None, members: Sequence[Node]
) -> Epilogue | None:
    """Statements for a product's own bias, a triu or tril, and pointwise nodes, in this order; None
    if an operand is not a float tensor.
    """
    variables = {product.name: "acc"}
    operands = []
    statements = []

    def name_of(name: str) -> str:
        if name not in variables:
            variables[name] = f"x{len(operands)}"
            operands.append(name)
        return variables[name]

    if bias is not None:
        scaled = "acc" if bias.alpha == 1 else f"acc * {write_number(bias.alpha)}"
        if bias.beta != 0:
            scaled += (
                f" + {name_of(bias.name)}"
                if bias.beta == 1
                else f" + {name_of(bias.name)} * {write_number(bias.beta)}"
            )
        statements.append(("biased", scaled))
        variables[product.name] = "biased"
    if triangle is not None:
        statements.append(
            (
                "kept",
                f"kmem_keep_triangle({variables[product.name]}, rows, columns, TRIANGLE, DIAGONAL)",
            )
        )
        variables[triangle.name] = "kept"
    for index, node in enumerate(members):
        text = write_pointwise(graph, node, name_of)
        statements.append((f"y{index}", text))
        variables[node.name] = f"y{index}"
    if any(graph.spec(name).dtype not in FLOATS for name in operands):
        return None
    return Epilogue(tuple(statements), tuple(operands))


def launch_operands(steps: Sequence[tuple[int, int, int, int]]) -> str:
    """Keyword arguments of a launch: each operand's pointer and its steps along both batch axes, m
    and n.
    """
    return "".join(
        f", e{index}=e{index}, "
        + ", ".join(f"E{index}_{name}={step}" for name, step in zip(_STEPS, operand, strict=True))
        for index, operand in enumerate(steps)
    )


def specialise(
    kernels: Sequence[tuple[str, str]], epilogue: Epilogue
) -> tuple[tuple[str, str], ...]:
    """Kernels with the epilogue written in; those it changes get its suffix, what it calls comes
    first.
    """
    count = len(epilogue.operands)
    parameters = "".join(
        f"e{index}, " + "".join(f"E{index}_{name}: tl.constexpr, " for name in _STEPS)
        for index in range(count)
    )
    arguments = "".join(
        f"e{index}, " + "".join(f"E{index}_{name}, " for name in _STEPS) for index in range(count)
    )
    loads = [
        (
            f"x{index} = kmem_load_operand(e{index}, batch // BATCH_INNER, batch % BATCH_INNER, "
            f"rows, columns, M, N, "
        )
        + ", ".join(f"E{index}_{name}" for name in _STEPS)
        + ")"
        for index in range(count)
    ]
    body = [*loads, *(f"{name} = {text}" for name, text in epilogue.statements)]
    if epilogue.statements:
        body.append(f"acc = {epilogue.statements[-1][0]}")
    statements = "".join(f"        {line}\n" for line in body)
    changed = [name for name, text in kernels if PARAMETERS in text]
    written = []
    for name, text in kernels:
        text = (
            text.replace(STATEMENTS, statements)
            .replace(f"{PARAMETERS} ", parameters)
            .replace(f"{ARGUMENTS} ", arguments)
        )
        for other in changed:
            text = text.replace(f"{other}(", f"{other}{epilogue.suffix}(")
        written.append((name + epilogue.suffix if name in changed else name, text))
    helpers = [(name, text) for name, text in HELPERS.items() if f"{name}(" in statements]
    helpers += [kernel for kernel in (LOAD_OPERAND, KEEP_TRIANGLE) if f"{kernel[0]}(" in statements]
    return (*helpers, *written)
