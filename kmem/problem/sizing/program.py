"""What a traced graph is as a program: how large, how much it computes, and which one it is.

workload.py compares graphs at smaller sizes by it with that at full size.
"""

import torch

from kmem.problem.costs.work import node_work
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.operators.arithmetic import Work, output_elements
from kmem.records import TensorSpec

#: Values that all operators of a forward compute, and multiply-adds that they take for these, which
#: Triton's interpreter still gets through as often as a proof runs them. Inputs and outputs can be
#: few where these are many: a transposed convolution before a mean computes a large image.
#: Source: KernelBench level 2, proofs on two cores. 58 (900,000 values) took 67 s and 43 (86
#: million multiply-adds) 19 s; 72 (2,900,000 values) took 404 s; 77 and 78 (1,000 and 394 million
#: multiply-adds) ended at the deadline.
MAX_SMALL_RESULTS = 2**20
MAX_SMALL_MULTIPLY_ADDS = 2**28

_CONVOLUTION_BACKWARD = "aten.convolution_backward.default"


def shape_of_program(graph: OpGraph, parameters_stay: bool) -> tuple[object, ...]:
    """What must be equal for two graphs to be the same program at other sizes."""
    parameters = [
        (placeholder.target, placeholder.spec if parameters_stay else _rank(placeholder.spec))
        for placeholder in graph.placeholders
        if placeholder.kind in ("parameter", "buffer")
    ]
    ranks = [_rank(node.output) for node in graph.nodes]
    targets = [node.target for node in graph.nodes]
    alone = [_stands_alone(graph, node) for node in graph.nodes]
    return (graph.opaque_reason is None, targets, ranks, alone, parameters)


def longer_axes(graph: OpGraph) -> list[tuple[bool, ...]]:
    """Of every result, which axes are longer than one: kernels leave out those that are not."""
    return [
        tuple(size > 1 for size in spec.shape)
        for node in graph.nodes
        for spec in (node.output,)
        if isinstance(spec, TensorSpec)
    ]


def _stands_alone(graph: OpGraph, node: Node) -> bool:
    """Whether each channel of a group norm is a group: its kernels are those of another norm."""
    if not node.target.startswith("aten.group_norm") or not isinstance(node.args[0], Ref):
        return False
    return graph.spec(node.args[0].name).shape[1] == node.args[1]


def _rank(output: TensorSpec | tuple[TensorSpec, ...] | None) -> object:
    return len(output.shape) if isinstance(output, TensorSpec) else None


def computes_much(graph: OpGraph) -> bool:
    """Whether a forward computes more than the interpreter handles, whatever goes in and out."""
    results = multiply_adds = 0
    for node in graph.nodes:
        work = node_work(graph, node)
        results += output_elements(node) if work != Work() else 0
        multiply_adds += work.product_fma + work.conv_fma
    return results > MAX_SMALL_RESULTS or multiply_adds > MAX_SMALL_MULTIPLY_ADDS


def count_outputs(graph: OpGraph) -> int:
    """Elements of all outputs."""
    return sum(graph.spec(name).numel for name in graph.outputs)


def count_held(graph: OpGraph) -> int:
    """Elements of all parameters and buffers."""
    return sum(
        placeholder.spec.numel
        for placeholder in graph.placeholders
        if placeholder.kind in ("parameter", "buffer") and placeholder.spec is not None
    )


def has_convolutions_that_fit(graph: OpGraph) -> bool:
    """Whether each backward of a convolution is given a gradient of the size of its output.

    Nothing asks for that on tensors without data; cuDNN refuses any other.
    """
    backwards = (node for node in graph.nodes if node.target == _CONVOLUTION_BACKWARD)
    return all(_fits(graph, node) for node in backwards)


def _fits(graph: OpGraph, node: Node) -> bool:
    gradient, *operands = (graph.spec(name).shape for name in node.refs()[:3])
    value, weight = (torch.empty(shape, device="meta") for shape in operands)
    try:
        made = torch.convolution(value, weight, None, *node.args[4:10])
    except RuntimeError:
        return False
    return tuple(made.shape) == tuple(gradient)
