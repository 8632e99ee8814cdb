"""Pointwise operators whose parameters lie along dimension 1 instead of broadcasting from the
right: batch norm in eval mode, and PReLU.
"""

from typing import TYPE_CHECKING

from kmem.codegen.pointwise import FLOATS, argument, variable, write_number
from kmem.problem.graph import Node, OpGraph, Ref

if TYPE_CHECKING:  # lowering.py calls this module; the name is needed for annotations alone
    from kmem.codegen.lowering import Lowering


def is_channelwise(node: Node) -> bool:
    """Whether a node is one of these operators."""
    return node.target == "aten.prelu.default" or (
        node.target == "aten.batch_norm.default" and argument(node, 5, "training") is False
    )


def is_supported_channelwise(graph: OpGraph, node: Node, shape: tuple[int, ...]) -> bool:
    """Whether its value covers a space of this shape, and every tensor it reads is of a type the
    kernels load.
    """
    has_parameters = node.target == "aten.prelu.default" or all(
        isinstance(value, Ref) for value in node.args[3:5]
    )
    return (
        has_parameters
        and node.spec.shape == shape
        and all(graph.spec(name).dtype in FLOATS for name in node.refs())
    )


def lower_channelwise(space: "Lowering", node: Node) -> None:
    """Append its statements. Source of the formulas: torch.nn.BatchNorm2d, torch.nn.PReLU."""
    out, source = variable(node.name), space.read(node.args[0].name, "full")

    def load(value: object, role: str) -> str | None:
        if not isinstance(value, Ref):
            return None
        space.load(f"{out}_{role}", value.name, space.channel_strides(space.graph.spec(value.name)))
        return f"{out}_{role}"

    if node.target == "aten.prelu.default":
        slope = load(node.args[1], "slope")
        space.map(out, f"tl.where({source} > 0.0, {source}, {slope} * {source})", source, slope)
        return
    weight, bias, mean, variance = (
        load(value, role)
        for value, role in zip(node.args[1:5], ("weight", "bias", "mean", "variance"), strict=True)
    )
    eps = write_number(argument(node, 7, "eps", 1e-5))
    text = f"({source} - {mean}) * tl.div_rn(1.0, tl.sqrt_rn({variance} + {eps}))"
    text = f"({text}) * {weight}" if weight else text
    space.map(
        out,
        f"{text} + {bias}" if bias else text,
        *(name for name in (source, mean, variance, weight, bias) if name),
    )
