"""The arithmetic that one call of an operator needs at least, and the rules that most rows share.

A rule reads shapes and arguments alone. Rules of one family (products, convolutions, recurrent
layers) stand beside its rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kmem.problem.graph import Node, OpGraph
from kmem.records import TensorSpec


@dataclass(frozen=True, slots=True)
class Work:
    """Operations of one node.

    `product_fma`: multiply-adds of matrix products, exact fp32 in eager by default. `conv_fma`:
    those of convolutions and recurrent layers, which eager does in TF32 by default
    (torch.backends.cudnn.allow_tf32). `simple`: adds, multiplies, comparisons. `special`: results
    of exp, log, tanh, sin, sqrt and the like.
    """

    product_fma: int = 0
    conv_fma: int = 0
    simple: int = 0
    special: int = 0


#: What counts a node's work, given the specs of the tensors it reads.
Arithmetic: TypeAlias = Callable[[Node, Sequence[TensorSpec]], Work]


def input_specs(graph: OpGraph, node: Node) -> list[TensorSpec]:
    """Specs of the tensors that a node reads, each value once, in order.

    Tuples and scalars are left out.
    """
    specs = []
    for name in dict.fromkeys(node.refs()):
        producer = graph.node(name)
        spec = producer.output if producer is not None else graph.placeholder(name).spec
        if isinstance(spec, TensorSpec):
            specs.append(spec)
    return specs


def output_elements(node: Node) -> int:
    """Elements of all tensors a node makes."""
    outputs = node.output if isinstance(node.output, tuple) else (node.output,)
    return sum(spec.numel for spec in outputs if spec is not None)


def input_elements(inputs: Sequence[TensorSpec]) -> int:
    """Elements of the largest input."""
    return max((spec.numel for spec in inputs), default=0)


def no_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Data is moved or described anew, and nothing is computed."""
    return Work()


def per_result(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """One operation per result."""
    return Work(simple=output_elements(node))


def special_per_result(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """One operation and one special-function result per result."""
    made = output_elements(node)
    return Work(simple=made, special=made)


def per_input(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Every element of the largest input is looked at once."""
    return Work(simple=input_elements(inputs))


def special_per_input(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Every element of the largest input is looked at once, with one special-function result."""
    read = input_elements(inputs)
    return Work(simple=read, special=read)


def statistics_and_scale(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Statistics of every element, then scale and shift of every element."""
    return Work(simple=2 * input_elements(inputs))
