"""What a node of a graph makes, as torch says on fake tensors: nothing is computed.

Apart from `editing`, so that skills are read and listed without loading torch.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.problem.graph import Arg, Node
from kmem.problem.tracing.calls import stand_in, tensor_spec
from kmem.problem.tracing.evaluate import evaluate_node
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.records import TensorSpec


def infer_output(
    node: Node, specs: Mapping[str, TensorSpec]
) -> TensorSpec | tuple[TensorSpec, ...]:
    """Shape, dtype and strides of the tensor that a node makes, or of each of several.

    Args:
        specs: those of every value that the node reads, by name.
    Raises Exception: whatever torch raises for arguments that do not fit; TypeError where the
        node makes something else than tensors.
    """
    # told too, for 1 and 1.0 are equal and make other types
    told = repr((node.args, dict(node.kwargs)))
    read = tuple((name, specs[name]) for name in dict.fromkeys(node.refs()))
    return _infer(node.target, node.args, tuple(node.kwargs.items()), read, told)


@lru_cache(maxsize=4096)
def _infer(
    target: str,
    args: tuple[Arg, ...],
    kwargs: tuple[tuple[str, Arg], ...],
    read: tuple[tuple[str, TensorSpec], ...],
    told: str,
) -> TensorSpec | tuple[TensorSpec, ...]:
    """`infer_output`, once: rewrites at fifty places of a network leave most nodes what they were.

    Args:
        told: tells apart arguments that are equal and of other types.
    """
    node = Node("", target, args, dict(kwargs), None)
    with quiet_fake_tensors(), FakeTensorMode(), torch.no_grad():
        values = {name: stand_in(spec) for name, spec in read}
        result = evaluate_node(node, values, device=torch.device("cpu"))
    several = result if isinstance(result, tuple | list) else (result,)
    if not all(isinstance(each, torch.Tensor) for each in several):
        raise TypeError("it makes something else than tensors")
    return tensor_spec(result) if several is not result else tuple(map(tensor_spec, several))
