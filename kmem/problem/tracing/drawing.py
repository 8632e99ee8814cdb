"""Masks of dropout drawn apart from what they drop.

Torch's random numbers can be drawn by torch's own operators alone, while what dropout does to a
value is a product like any other. Given zeros of the value's shape, torch draws the very mask that
it draws for the value: the numbers depend on sizes and types, not on what is dropped.

Covered: dropout in training mode of contiguous floating tensors, with a probability between 0 and
1. Not covered: dropout of whole channels, alpha dropout, and what draws inside of other operators.
"""

from dataclasses import replace

from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import DEVICE, Literal, Node, OpGraph, Ref
from kmem.records import TensorSpec

_PRODUCT = "aten.mul.Tensor"


def draw_apart(graph: OpGraph) -> OpGraph:
    """The graph whose dropouts are a mask that torch draws of zeros, and a product with it.

    What a dropout makes keeps its name.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += _drawn_apart(node) if _is_dropout(node) else [node]
    return replace(graph, nodes=tuple(nodes))


def _is_dropout(node: Node) -> bool:
    if node.target != "aten.dropout.default" or not isinstance(node.output, TensorSpec):
        return False
    spec, is_training = node.spec, node.args[2]
    is_usual = spec.is_contiguous and spec.dtype in FLOATS and spec.numel > 0
    return bool(is_training and 0 < node.args[1] < 1 and is_usual)


def _drawn_apart(node: Node) -> list[Node]:
    """What a dropout is made of, in order."""
    source, probability = node.args[:2]
    spec, mask = node.spec, replace(node.spec, dtype="bool")
    name = {part: f"{node.name}_{part}" for part in ("zeros", "drawn", "kept", "dropped")}
    kind = {"dtype": Literal(f"torch.{spec.dtype}"), "device": DEVICE}
    drawing = (Ref(name["zeros"]), probability, True)
    parts = [
        Node(name["zeros"], "aten.zeros.default", (spec.shape,), kind, spec),
        Node(name["drawn"], "aten.native_dropout.default", drawing, {}, (spec, mask)),
        Node(name["kept"], "getitem", (Ref(name["drawn"]), 1), {}, mask),
        Node(name["dropped"], _PRODUCT, (source, Ref(name["kept"])), {}, spec),
        Node(node.name, _PRODUCT, (Ref(name["dropped"]), 1 / (1 - probability)), {}, spec),
    ]
    return [replace(part, module=node.module) for part in parts]
