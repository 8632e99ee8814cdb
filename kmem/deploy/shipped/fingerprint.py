"""A hash of what a module computes: the operators of one forward, by torch.export on fake tensors.

Two modules with one fingerprint compute the same from inputs of these shapes and from parameters of
these names. Texts of graphs depend on the version of torch: after an update a fingerprint may
differ, and then the module keeps its own code.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import InputKind

from kmem.deploy.shipped.table import Input

#: Constants made in a forward are compared by value up to this size.
_MAX_CONSTANT_ELEMENTS = 64
#: Where torch logs tracebacks when an export fails.
_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


class NoFingerprint(Exception):
    """What a module computes cannot be told; the message says why."""


def fingerprint(module: torch.nn.Module, inputs: Sequence[Input], device: torch.device) -> str:
    """The hash of what a module computes in its present mode, from inputs of these shapes.

    Nothing is computed and no memory is taken. The module may be on fake tensors itself.

    Raises NoFingerprint: if torch.export cannot trace it.
    """
    mode = _mode_of(module) or FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        values = tuple(
            torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=device)
            if each.is_tensor
            else each.value
            for each in inputs
        )
    try:
        with _quiet(), torch.no_grad():
            program = torch.export.export(module, values, strict=False)
    except Exception as ex:  # noqa: BLE001  # a stranger's forward raises anything at all
        text = str(ex).strip().splitlines()
        raise NoFingerprint(f"{type(ex).__name__}: {text[0] if text else ''}") from ex
    lines = "\n".join(_describe(program))
    return hashlib.sha256(lines.encode()).hexdigest()


def _mode_of(module: torch.nn.Module) -> FakeTensorMode | None:
    for tensor in (*module.parameters(), *module.buffers()):
        return getattr(tensor, "fake_mode", None)
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's own complaints about a failed export away from the user."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


def _describe(program: torch.export.ExportedProgram) -> Iterator[str]:
    """One line for each node, with numbers in the place of names."""
    signature = {each.arg.name: each for each in program.graph_signature.input_specs}
    numbers: dict[str, int] = {}
    given = 0
    for node in program.graph.nodes:
        if node.op == "placeholder":
            entry = signature[node.name]
            what = entry.target or ""
            if entry.kind is InputKind.USER_INPUT:
                what, given = f"input {given}", given + 1
            elif entry.kind is InputKind.CONSTANT_TENSOR:
                what = _describe_constant(program.constants[entry.target])
            elif not any(True for _ in node.users):
                continue  # a buffer that nothing reads, such as a counter of batches
            numbers[node.name] = len(numbers)
            yield f"%{numbers[node.name]} = {what}"
        elif node.op == "call_function":
            numbers[node.name] = len(numbers)
            kwargs = {key: node.kwargs[key] for key in sorted(node.kwargs)}
            yield (
                f"%{numbers[node.name]} = {_name(node.target)}"
                f"{_argument(node.args, numbers)}{_argument(kwargs, numbers)}"
            )
        elif node.op == "output":
            yield f"return {_argument(node.args[0], numbers)} {program.call_spec.out_spec}"
        else:
            raise NoFingerprint(f"its graph has a {node.op} node")


def _describe_constant(tensor: torch.Tensor) -> str:
    if getattr(tensor, "fake_mode", None) is not None or tensor.numel() > _MAX_CONSTANT_ELEMENTS:
        raise NoFingerprint("it uses a tensor that is neither input, parameter nor buffer")
    return f"{tensor.dtype} {tensor.tolist()}"


def _name(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return getattr(target, "__name__", str(target))


def _argument(value: Any, numbers: dict[str, int]) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value.name]}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_argument(each, numbers) for each in value)})"
    if isinstance(value, dict):
        inner = ", ".join(f"{key}={_argument(each, numbers)}" for key, each in value.items())
        return f"{{{inner}}}"
    if isinstance(value, torch.device):
        return "device"
    return repr(value)
