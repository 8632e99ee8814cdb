"""Pointwise nodes as Triton expressions, in fp32.

How an operator is written stands in its row of the table (kmem/problem/operators/); here a node's
arguments are bound to it. region.py orders expressions, rows/pointwise_kernel.py and rows/kernel.py
wrap expressions in kernels.

Covered: float32, float16, bfloat16 and bool tensors, Python scalars. Not covered: integer
arithmetic, float64, complex, random operators.
"""

from collections.abc import Callable

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Literal, Node, OpGraph, Ref
from kmem.problem.operators.expressions import Expression, as_expression, write_number
from kmem.problem.operators.row import REQUIRED, Call, Layout, Pointwise
from kmem.problem.operators.table import find_operator, lowering_of

#: Types of tensors that expressions read and make.
_DTYPES = (*FLOATS, "bool")
_CASTS = {
    "torch.float32": "tl.float32",
    "torch.float16": "tl.float16",
    "torch.bfloat16": "tl.bfloat16",
}


def compute_type(dtype: str) -> str:
    """The Triton type in which a value of this torch dtype computes."""
    return {"bool": "tl.int1", "int64": "tl.int64"}.get(dtype, "tl.float32")


def is_identity(graph: OpGraph, node: Node) -> bool:
    """Whether a node hands its first input on unchanged, up to shape."""
    return lowering_of(graph, node) is Layout.IDENTITY


def element_inputs(graph: OpGraph, node: Node) -> list[str]:
    """Values that a pointwise node reads for their elements, each once.

    expand_as reads its second input for the shape alone.
    """
    names = list(dict.fromkeys(node.refs()))
    return names[:1] if is_identity(graph, node) else names


def write_pointwise(graph: OpGraph, node: Node, name_of: Callable[[str], str]) -> Expression | None:
    """The fp32 expression of a pointwise node; None if it cannot be written exactly enough.

    Args:
        name_of: the variable that holds a graph value.
    """
    operator = find_operator(node.target)
    if operator is None or not _has_known_types(graph, node):
        return None
    call = operator.call(graph, node)
    lowering = operator.lowering_of(call)
    if lowering is Layout.IDENTITY:
        return Expression(name_of(node.args[0].name)) if isinstance(node.args[0], Ref) else None
    if lowering is Layout.CAST:
        return _write_cast(call, name_of)
    if not isinstance(lowering, Pointwise):
        return None
    if node.is_in_place and not _may_forget_input(graph, node):
        return None
    if set(call.arguments) != set(operator.parameters) or REQUIRED in call.arguments.values():
        return None
    if not all(_is_writable(value) for value in call.arguments.values()):
        return None
    texts = (
        _write_argument(graph, value, name_of, is_flag=parameter in lowering.flags)
        for parameter, value in call.arguments.items()
    )
    written = lowering.write(*texts)
    return None if written is None else as_expression(written)


def _is_writable(value: object) -> bool:
    return isinstance(value, Ref | str | int | float | None)


def _write_argument(
    graph: OpGraph, value: object, name_of: Callable[[str], str], *, is_flag: bool
) -> str | None:
    """A variable or a number; None and strings, which are options, as they are."""
    if isinstance(value, Ref):
        name = name_of(value.name)
        is_number = is_flag or graph.spec(value.name).dtype != "bool"
        return name if is_number else f"({name}).to(tl.float32)"
    return value if value is None or isinstance(value, str) else write_number(value)


def _write_cast(call: Call, name_of: Callable[[str], str]) -> Expression | None:
    """A cast as eager rounds it: through the narrow type and back to fp32."""
    dtype, source = call["dtype"], call.value("x")
    if not isinstance(dtype, Literal) or dtype.expression not in _CASTS or source is None:
        return None
    narrow = _CASTS[dtype.expression]
    through = "" if narrow == "tl.float32" else f".to({narrow})"
    return Expression(f"({name_of(source)}){through}.to(tl.float32)")


def _has_known_types(graph: OpGraph, node: Node) -> bool:
    output = node.output
    if isinstance(output, tuple) and is_identity(graph, node):
        output = output[0]
    if isinstance(output, tuple) or output is None or output.dtype not in _DTYPES:
        return False
    for name in node.refs():
        producer = graph.node(name)
        if producer is not None and isinstance(producer.output, tuple):
            return False
        if graph.spec(name).dtype not in _DTYPES:
            return False
    return True


def _may_forget_input(graph: OpGraph, node: Node) -> bool:
    """Whether an in-place operator may be written out of place.

    It may if it alone reads its input, and that is memory of its own and no view or argument, nor
    one that was changed in place before.
    """
    source = node.args[0]
    producer = graph.node(source.name) if isinstance(source, Ref) else None
    if producer is None or not graph.has_one_user(source.name):
        return False
    if producer.is_in_place:
        return _may_forget_input(graph, producer)
    operator = find_operator(producer.target)
    return operator is not None and (operator.is_fresh or isinstance(operator.lowering, Pointwise))
