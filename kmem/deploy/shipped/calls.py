"""A hash of the ATen calls of one forward: cheap, and enough to find most modules to replace.

Two modules that make the very same calls compute the same. `fingerprint` knows more modules that
compute the same, but torch.export takes ten times as long; it is asked only where the calls
differ. They depend on the version of torch, and a few on the device, so that they differ more often
than what is computed; never less often.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.deploy.shipped.table import Input

#: Tensors whose place a stand-in can take for one forward.
_REPLACED = (torch.Tensor, torch.nn.Parameter, FakeTensor)
#: What an argument may be beside tensors; each is told apart by its text.
_PLAIN = (
    bool | int | float | complex | str | torch.dtype | torch.layout | torch.memory_format | None
)


class NoCalls(Exception):
    """The calls of a forward do not tell what it computes; the message says why."""


def calls_of(module: torch.nn.Module, inputs: Sequence[Input], device: torch.device) -> str:
    """The hash of the ATen calls of a forward in its present mode, from inputs of these shapes.

    Nothing is computed and no memory is taken.

    Args:
        module: its tensors are replaced for the time of the call.
        inputs: the arguments of a forward.
        device: which its tensors say that they are on.

    Raises NoCalls: if the forward needs values, or uses a tensor that is neither input, parameter
        nor buffer.
    """
    recorder = _Recorder(device)
    values = tuple(
        recorder.give(
            f"input {place}",
            torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device="meta"),
        )
        if each.is_tensor
        else each.value
        for place, each in enumerate(inputs)
    )
    state: dict[str, torch.Tensor] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if type(tensor) not in _REPLACED or tensor.device != device:
            raise NoCalls(f"its {name} is no plain tensor on {device}")
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        state[name] = recorder.give(name, like)
    try:
        with recorder, torch.no_grad():
            found = torch.func.functional_call(module, state, values)
        lines = [*recorder.lines, f"return {recorder.describe(found)}"]
    except Exception as ex:  # noqa: BLE001  # a stranger's forward raises anything at all
        raise NoCalls(f"{type(ex).__name__}: {ex}") from ex
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Seen(torch.Tensor):
    """A tensor without memory that says it is on a device, and by which name calls know it."""

    call_name: str
    like: torch.Tensor  # on the device meta

    @staticmethod
    def __new__(cls, name: str, like: torch.Tensor, device: torch.device) -> "_Seen":
        made: _Seen = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        made.call_name, made.like = name, like
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, *call: Any) -> Any:
        raise NoCalls("a call is made after the forward")


class _Recorder(TorchDispatchMode):
    """Writes down the calls that are made while it is active, and makes them without memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._device = device
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what makes torch skip it imports the whole of Dynamo

    def give(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return _Seen(name, like, self._device)

    def describe(self, value: Any) -> str:
        """An argument as a text that no other argument has."""
        if isinstance(value, _Seen):
            return f"%{value.call_name}"
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self.describe, value))})"
        if isinstance(value, Mapping):
            inner = ", ".join(f"{key!r}={self.describe(each)}" for key, each in value.items())
            return f"{type(value).__name__}{{{inner}}}"
        if isinstance(value, torch.device):
            if value.type != self._device.type:
                raise NoCalls(f"something is on {value}")
            return "device"
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        raise NoCalls(f"a {type(value).__name__} is neither input, parameter nor buffer")

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(sorted((kwargs or {}).items()))
        text = f"{func}{self.describe(args)}{self.describe(named)}"
        own = {id(each.like): each for each in _tensors_in([args, named])}
        found = func(*_without_memory(args), **_without_memory(named))
        result = self._name(found, own)
        self.lines.append(f"{self.describe(result)} = {text}")
        return result

    def _name(self, found: Any, own: Mapping[int, _Seen]) -> Any:
        """What a call returned, named by its number; an argument that it returns is that."""
        if isinstance(found, torch.Tensor):
            if id(found) in own:
                return own[id(found)]
            if found.device.type != "meta":
                raise NoCalls("a call makes memory")
            self._count += 1
            return self.give(str(self._count), found)
        if isinstance(found, list | tuple):
            return type(found)(self._name(each, own) for each in found)
        return found


def _without_memory(value: Any) -> Any:
    """Arguments as they are, with every tensor and device as on the device meta."""
    if isinstance(value, _Seen):
        return value.like
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, list | tuple):
        return type(value)(map(_without_memory, value))
    if isinstance(value, Mapping):
        return {key: _without_memory(each) for key, each in value.items()}
    return value


def _tensors_in(value: Any) -> list[_Seen]:
    if isinstance(value, _Seen):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [each for part in value for each in _tensors_in(part)]
    return []
