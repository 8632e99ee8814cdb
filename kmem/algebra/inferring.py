"""What a node of a graph makes, as torch says on fake tensors: nothing is computed.

Apart from `editing`, so that skills are read and listed without loading torch.
"""

from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kmem.problem.graph import Node
from kmem.problem.tracing.evaluate import evaluate_node
from kmem.problem.tracing.fake import quiet_fake_tensors
from kmem.problem.tracing.trace import tensor_spec
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
    with quiet_fake_tensors(), FakeTensorMode(), torch.no_grad():
        values = {
            name: torch.empty_strided(
                specs[name].shape,
                specs[name].stride,
                dtype=getattr(torch, specs[name].dtype),
                device="cpu",
            )
            for name in set(node.refs())
        }
        result = evaluate_node(node, values, device=torch.device("cpu"))
    several = result if isinstance(result, tuple | list) else (result,)
    if not all(isinstance(each, torch.Tensor) for each in several):
        raise TypeError("it makes something else than tensors")
    return tensor_spec(result) if several is not result else tuple(map(tensor_spec, several))
