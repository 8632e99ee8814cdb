"""What of a graph no site replaces, as Python text: library calls, constants, attributes."""

from kmem.problem.graph import DEVICE, Arg, Literal, Node, OpGraph, Placeholder, Ref
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of


def attribute(target: str) -> str:
    """A state_dict name as an attribute path that works in source.

    Containers with number names need a call: `layers.0.weight` is
    `layers.get_submodule('0').weight`.
    """
    path = ""
    for part in target.split("."):
        if part.isdigit():
            path += f".get_submodule('{part}')"
        else:
            path += f".{part}" if path else part
    return path.removeprefix(".")


def write_constant(constant: Placeholder) -> str:
    """A constant made on the device of the first input.

    A single number takes a fill kernel, for a copy from the host would stall the stream; more take
    torch.tensor.
    """
    is_number = not isinstance(constant.value, tuple)
    make = f"torch.full({constant.spec.shape!r}, " if is_number else "torch.tensor("
    kind = f"dtype=torch.{constant.spec.dtype}, device={DEVICE.expression}"
    return f"{make}{write_arg(constant.value)}, {kind})"


def write_call(graph: OpGraph, node: Node) -> str:
    """A node as a call of the library."""
    arguments = [write_arg(arg) for arg in node.args]
    arguments += [f"{key}={write_arg(arg)}" for key, arg in node.kwargs.items()]
    if lowering_of(graph, node) is Layout.TAKE:
        return f"{arguments[0]}[{arguments[1]}]"
    return f"torch.ops.{node.target}({', '.join(arguments)})"


def write_arg(arg: Arg) -> str:
    """An argument of a node as an expression."""
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, Literal):
        return arg.expression
    if isinstance(arg, tuple):
        return "[" + ", ".join(write_arg(item) for item in arg) + "]"
    if isinstance(arg, float) and (arg != arg or arg in (float("inf"), float("-inf"))):
        return f"float('{arg}')"
    return repr(arg)
