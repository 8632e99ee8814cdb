"""What of a graph no site replaces, as Python text: library calls and constants."""

from collections.abc import Sequence

from kmem.problem.graph import DEVICE, Arg, Literal, Node, OpGraph, Placeholder, Ref
from kmem.problem.operators.row import Layout
from kmem.problem.operators.table import lowering_of

#: What torch itself calls operators, by their targets. The host is through with `torch.conv2d` in
#: 2.7 us and with `torch.ops.aten.conv2d.default` in 4.6, with `x.view` in 0.8 and 1.7 (torch 2.11,
#: on the CPU of 2026-11-28): arguments need not be matched with a schema. In a network of small
#: operators that is what counts.
FUNCTIONS = {
    "aten.add.Tensor": "torch.add",
    "aten.addmm.default": "torch.addmm",
    "aten.amax.default": "torch.amax",
    "aten.avg_pool2d.default": "torch.nn.functional.avg_pool2d",
    "aten.batch_norm.default": "torch.batch_norm",
    "aten.bmm.default": "torch.bmm",
    "aten.cat.default": "torch.cat",
    "aten.conv1d.default": "torch.conv1d",
    "aten.conv2d.default": "torch.conv2d",
    "aten.conv3d.default": "torch.conv3d",
    "aten.conv_transpose1d.default": "torch.conv_transpose1d",
    "aten.conv_transpose2d.input": "torch.conv_transpose2d",
    "aten.conv_transpose3d.input": "torch.conv_transpose3d",
    "aten.div.Tensor": "torch.div",
    "aten.dropout.default": "torch.dropout",
    "aten.exp.default": "torch.exp",
    "aten.gelu.default": "torch.nn.functional.gelu",
    "aten.group_norm.default": "torch.group_norm",
    "aten.layer_norm.default": "torch.layer_norm",
    "aten.linear.default": "torch.nn.functional.linear",
    "aten.matmul.default": "torch.matmul",
    "aten.max_pool2d.default": "torch.max_pool2d",
    "aten.mean.dim": "torch.mean",
    "aten.mm.default": "torch.mm",
    "aten.mul.Tensor": "torch.mul",
    "aten.relu.default": "torch.relu",
    "aten.scaled_dot_product_attention.default": (
        "torch.nn.functional.scaled_dot_product_attention"
    ),
    "aten.sigmoid.default": "torch.sigmoid",
    "aten.softmax.int": "torch.softmax",
    "aten.sub.Tensor": "torch.sub",
    "aten.sum.dim_IntList": "torch.sum",
    "aten.tanh.default": "torch.tanh",
}
METHODS = {
    "aten.clone.default": "clone",
    "aten.contiguous.default": "contiguous",
    "aten.detach.default": "detach",
    "aten.expand.default": "expand",
    "aten.flatten.using_ints": "flatten",
    "aten.permute.default": "permute",
    "aten.reshape.default": "reshape",
    "aten.select.int": "select",
    "aten.squeeze.dim": "squeeze",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.unfold.default": "unfold",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}


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
    return spell(node.target, arguments)


def spell(target: str, arguments: Sequence[str]) -> str:
    """A call of an operator of the library, by the name that the host is through with first."""
    if target in METHODS:
        return f"{arguments[0]}.{METHODS[target]}({', '.join(arguments[1:])})"
    return f"{FUNCTIONS.get(target, f'torch.ops.{target}')}({', '.join(arguments)})"


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
