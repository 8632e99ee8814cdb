"""A problem file written for a module that lives in this process, by way of `torch.export`.

The file's `Model` has the parameters and buffers of the module under the same names, drawn anew
with the same mean and spread, and a forward of the operators that one call dispatches. It holds
none of the module's weights.
"""

import keyword
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from kmem.errors import ProblemError, first_line

#: What a written forward calls the device of its inputs.
_DEVICE = "device_of_inputs"

_HEAD = '''"""{title}, as torch.export sees it; written by kmem."""

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
{state}
{forward}

def get_inputs():
    return [
{inputs}
    ]
'''


def write_problem(
    model: nn.Module, inputs: Sequence[object], directory: Path, label: str = ""
) -> Path:
    """Write a problem file for a module and example inputs; returns its path.

    Args:
        model: in the mode in which it is to be made fast.
        inputs: the positional arguments of one forward; tensors give shape, dtype and spread.
        directory: where the file goes, named after the module's class.
        label: tells it from others of the module.

    Raises ProblemError: if the module cannot be exported, or keeps what a file cannot say.
    """
    name = type(model).__name__
    try:
        with torch.no_grad():
            program = torch.export.export(model, tuple(inputs), strict=False)
    except Exception as ex:  # noqa: BLE001  # the user's code and torch's: whatever they raise
        raise ProblemError(
            f"{name} cannot be exported ({first_line(ex)}); write a problem file with Model and "
            "get_inputs (`kmem problem new`), or optimise a part of it"
        ) from ex
    text = _HEAD.format(
        title=name,
        state="\n".join(_write_state(model)),
        forward=_write_forward(program, name),
        inputs="\n".join(f"        {_write_value(value)}," for value in inputs),
    )
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / f"{name.lower()}{'_' if label else ''}{label}.py"
    place.write_text(text, encoding="utf-8")
    return place


def _write_state(model: nn.Module) -> Iterator[str]:
    """Statements of a constructor that make the same names, as containers and tensors."""
    pad = " " * 8
    for path, module in model.named_modules():
        if path:
            yield f"{pad}{_owner(path)}.add_module({path.rpartition('.')[2]!r}, torch.nn.Module())"
        for name, tensor in module.named_parameters(recurse=False):
            learnt = f"torch.nn.Parameter({_write_tensor(tensor)}, {tensor.requires_grad})"
            yield f"{pad}{_place(path)}.register_parameter({name!r}, {learnt})"
        for name, tensor in module.named_buffers(recurse=False):
            kept = name not in module._non_persistent_buffers_set
            yield f"{pad}{_place(path)}.register_buffer({name!r}, {_write_tensor(tensor)}, {kept})"
    if not model.training:
        yield f"{pad}self.eval()"


def _place(path: str) -> str:
    return f"self.get_submodule({path!r})" if path else "self"


def _owner(path: str) -> str:
    return _place(path.rpartition(".")[0])


def _write_tensor(tensor: torch.Tensor) -> str:
    """An expression that draws a tensor like this one."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not dtype.is_floating_point or not tensor.numel():
        ends = (int(tensor.min()), int(tensor.max()) + 1) if tensor.numel() else (0, 1)
        return f"torch.randint({ends[0]}, {ends[1]}, {shape}).to({dtype})"
    values = tensor.detach().double()
    low, high = values.min().item(), values.max().item()
    if low == high:
        return f"torch.full({shape}, {low!r}, dtype={dtype})"
    # between the least and the greatest, so that a variance stays positive
    return f"torch.empty({shape}, dtype={dtype}).uniform_({low!r}, {high!r})"


def _write_value(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if not value.dtype.is_floating_point:
        return _write_tensor(value)
    text = f"torch.randn({tuple(value.shape)})"
    if value.dtype is not torch.float32:
        text += f".to({value.dtype})"
    if not value.is_contiguous():
        text = f"torch.empty_strided({tuple(value.shape)}, {value.stride()}).copy_({text})"
        text += f".to({value.dtype})" if value.dtype is not torch.float32 else ""
    return text


def _write_forward(program: torch.export.ExportedProgram, name: str) -> str:
    """The forward method, one operator a line."""
    constants = [*program.constants, *program.graph_signature.lifted_tensor_constants]
    held = [each for each in constants if each not in program.graph_signature.buffers]
    if held:
        raise ProblemError(
            f"{name} keeps the tensor {held[0]} as no parameter or buffer; register it by "
            "register_buffer, or write a problem file"
        )
    signature = program.graph_signature
    state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lines: list[str] = []
    given: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in state:
            target = state[node.name]
            held = f"{_owner(target)}, {target.rpartition('.')[2]!r}"
            lines.append(f"{_name_of(node)} = getattr({held})")
        elif node.op == "placeholder":
            given.append(_name_of(node))
            if isinstance(node.meta["val"], torch.Tensor):
                lines.append(f"{_DEVICE} = {_name_of(node)}.device")
        elif "_assert_" in str(node.target):
            continue  # what holds for the shapes that were traced
        elif node.op == "call_function":
            lines.append(f"{_name_of(node)} = {_write_call(node, name)}")
        elif node.op == "output":
            lines.append(f"return {_write_outputs(node)}")
        else:
            raise ProblemError(f"{name} holds {node.op} {node.target}; write a problem file")
    head = f"    def forward({', '.join(['self', *given])}):"
    return "\n".join([head, *(f"        {line}" for line in lines)]) + "\n"


def _write_outputs(node: torch.fx.Node) -> str:
    outputs = node.args[0]
    if len(outputs) == 1:
        return _write_argument(outputs[0])
    return "(" + ", ".join(_write_argument(each) for each in outputs) + ")"


def _name_of(node: torch.fx.Node) -> str:
    """A Python name for a node of a graph."""
    name = node.name
    return f"{name}_" if keyword.iskeyword(name) or name in ("self", "torch") else name


def _write_call(node: torch.fx.Node, name: str) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        called = f"torch.ops.{target}"
    elif getattr(target, "__name__", "") == "getitem":
        return f"{_write_argument(node.args[0])}[{node.args[1]!r}]"
    else:
        raise ProblemError(
            f"{name} calls {getattr(target, '__name__', target)}, which a problem file cannot say; "
            "write one by hand"
        )
    given = [_write_argument(each) for each in node.args]
    given += [f"{key}={_write_argument(each)}" for key, each in node.kwargs.items()]
    return f"{called}({', '.join(given)})"


def _write_argument(value: object) -> str:
    if isinstance(value, torch.fx.Node):
        return _name_of(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(_write_argument(each) for each in value)
        return f"[{inner}]"
    if isinstance(value, torch.device):
        return _DEVICE
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f"float('{value}')"
    return repr(value)
