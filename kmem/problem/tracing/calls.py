"""Calls of traced graphs as nodes, and tensors as what is known of them."""

import operator
from collections.abc import Iterable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

from kmem.problem.graph import DEVICE, Arg, Literal, Node, Ref
from kmem.problem.operators.table import find_operator
from kmem.records import TensorSpec

#: Takes the type of another value; as a cast it reads that value no more.
_TAKES_TYPE, _CASTS = "aten.type_as.default", "aten.to.dtype"


class Untraceable(Exception):
    """Carries the reason a forward is treated as one opaque call."""


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def tensor_spec(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and strides of a tensor, fake ones included."""
    return TensorSpec(
        tuple(int(size) for size in tensor.shape),
        dtype_name(tensor.dtype),
        tuple(int(step) for step in tensor.stride()),
    )


def stand_in(spec: TensorSpec) -> torch.Tensor:
    """A tensor on the CPU of which this is known; its values are not."""
    dtype = getattr(torch, spec.dtype)
    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="cpu")


def read_call(node: torch.fx.Node, target: str, constants: Mapping[str, str]) -> Node:
    """A call of a traced graph as a node.

    Args:
        constants: other names of values that it reads.
    """
    kwargs = {key: _argument(value, constants) for key, value in node.kwargs.items()}
    args = _arguments(node.args, constants)
    if target == _TAKES_TYPE:
        target, args = _CASTS, (args[0], _argument(node.args[1].meta["val"].dtype, constants))
    callers = node.meta.get("nn_module_stack") or {"": ("",)}
    path = str(next(reversed(callers.values()))[0])  # of the innermost
    return Node(node.name, target, args, kwargs, _output(node.meta.get("val")), path)


def target_name(target: object) -> str:
    """What a graph calls an operator.

    Raises Untraceable: for one that is not torch's and has no row in the table.
    """
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        if target.namespace == "aten" or find_operator(name) is not None:
            return name
    raise Untraceable(f"it calls {target}")


#: Of a result that an operator leaves out, as a backward does gradients that are not asked for.
_LEFT_OUT = TensorSpec((0,), "float32", (1,))


def _output(value: object) -> TensorSpec | tuple[TensorSpec, ...] | None:
    if value is None:
        return None
    items = value if isinstance(value, tuple | list) else [value]
    tensors = [item for item in items if item is not None]
    if tensors and all(isinstance(item, FakeTensor) for item in tensors):
        if any(isinstance(size, torch.SymInt) for item in tensors for size in item.shape):
            raise Untraceable("sizes inside depend on values")
        specs = tuple(_LEFT_OUT if item is None else tensor_spec(item) for item in items)
        return specs if items is value else specs[0]
    raise Untraceable(f"an operator that returns {type(value).__name__}")


def _arguments(args: Iterable[object], constants: Mapping[str, str]) -> tuple[Arg, ...]:
    return tuple(_argument(arg, constants) for arg in args)


def _argument(arg: object, constants: Mapping[str, str]) -> Arg:
    if isinstance(arg, torch.fx.Node):
        return Ref(constants.get(arg.name, arg.name))
    if isinstance(arg, tuple | list):
        return _arguments(arg, constants)
    if arg is None or isinstance(arg, bool | int | float | str):
        return arg
    if isinstance(arg, torch.dtype | torch.memory_format | torch.layout):
        return Literal(str(arg))
    if isinstance(arg, torch.device):
        return DEVICE
    raise Untraceable(f"an argument of type {type(arg).__name__}")
