"""Whether a kernel may serve a call; the first clause that fails is the reason.

Every function here looks at shapes, dtypes, strides and flags alone, never at values: fake tensors
pass, and torch.compile turns the clauses into guards.
"""

from collections.abc import Sequence
from typing import Any

import torch

from kmem.deploy.shipped.table import Entry


def supports(entry: Entry, *inputs: Any) -> bool:
    """Whether an entry's kernel was written for these inputs, on whatever device they are."""
    return objection_to_inputs(entry, inputs) is None


def objection_to_inputs(entry: Entry, inputs: Sequence[Any]) -> str | None:
    """Why an entry's kernel cannot take these inputs; None if it can."""
    if len(inputs) != len(entry.inputs):
        return f"it is called with {len(inputs)} arguments, the kernel takes {len(entry.inputs)}"
    for place, (value, expected) in enumerate(zip(inputs, entry.inputs, strict=True)):
        if not expected.is_tensor:
            if type(value) is not type(expected.value) or value != expected.value:
                return f"argument {place} is not the {expected.value!r} that the kernel is for"
        elif not isinstance(value, torch.Tensor):
            return f"argument {place} is no tensor"
        elif value.dtype != expected.dtype:
            return f"argument {place} is of {value.dtype}, the kernel is for {expected.dtype}"
        elif tuple(value.shape) != expected.shape:
            return f"argument {place} is {tuple(value.shape)}, the kernel is for {expected.shape}"
        elif tuple(value.stride()) != expected.stride:
            return (
                f"argument {place} has strides {tuple(value.stride())}, the kernel is for "
                f"{expected.stride}"
            )
    return None


def objection_to_gradients(tensors: Sequence[Any]) -> str | None:
    """Why gradients forbid a kernel, which has no backward; None if none are recorded."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                return "gradients are recorded, and the kernel has no backward"
    return None


def objection_to_tensors(tensors: Sequence[Any], plain: tuple[type, ...]) -> str | None:
    """Why the kinds or places of tensors forbid a kernel: all must be plain and on one device.

    Args:
        plain: the types that a kernel can read; a subclass such as DTensor stands for something
            else than its memory.
    """
    device = None
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        if type(tensor) not in plain:
            return f"a tensor is a {type(tensor).__name__}, whose memory a kernel cannot read"
        if device is not None and tensor.device != device:
            return f"tensors are on {device} and on {tensor.device}"
        device = tensor.device
    return None


def objection_to_context(device_type: str) -> str | None:
    """Why what is under way around the call forbids a kernel; None if nothing does."""
    if torch.is_autocast_enabled(device_type):
        return "autocast is on, which changes what the module computes"
    if torch.compiler.is_compiling():
        return None
    if torch.jit.is_tracing():
        return "torch.jit.trace is under way"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func (vmap, grad) is under way"
    return None


def devices_for(entry: Entry) -> list[tuple[str, int | None]]:
    """Where an entry's kernel may run: GPUs of the name that it was verified on."""
    import triton  # only a model that gets kernels pays for it

    if triton.knobs.runtime.interpret:
        return [("cpu", None)]
    if not torch.cuda.is_available():
        return []
    return [
        ("cuda", index)
        for index in range(torch.cuda.device_count())
        if torch.cuda.get_device_name(index) == entry.device
    ]
