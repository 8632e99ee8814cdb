"""Which values of a graph have gradients, and which operators stay the library's in training.

Attention, recurrences and tables of embeddings have a backward of the library's that no recipe
writes; they run between pieces under autograd.
"""

from collections.abc import Collection

from kmem.problem.graph import Node, OpGraph
from kmem.records import TensorSpec

#: What names of operators have in them whose backward is the library's alone.
_LIBRARYS = ("attention", "lstm", "gru", "rnn_", "embedding", "fft")
#: Operators behind which there is no gradient.
_STOPS = ("aten.detach.default", "aten.detach_.default")


def stays_the_librarys(node: Node) -> bool:
    """Whether an operator is in no piece of a model that is trained."""
    name = node.target.removeprefix("aten.").split(".")[0]
    return any(each in name for each in _LIBRARYS)


def recorded(graph: OpGraph, leaves: Collection[str]) -> frozenset[str]:
    """The values of a graph that have gradients.

    Args:
        leaves: the placeholders that have.
    """
    found = set(leaves)
    for node in graph.nodes:
        has = node.target not in _STOPS and any(name in found for name in node.refs())
        if has and (not isinstance(node.output, TensorSpec) or _is_floating(node.output)):
            found.add(node.name)
    return frozenset(found)


def _is_floating(spec: TensorSpec) -> bool:
    return "float" in spec.dtype or "complex" in spec.dtype
