"""The ATen calls of one forward: cheap to compare, and enough to find most modules to replace.

A module that makes the very calls of a kernel's own module computes the same. `fingerprint` knows
more modules that compute the same, but torch.export takes a hundred times as long; it is asked only
where the calls differ. Calls depend on the version of torch, so that they differ more often than
what is computed; never less often.

Nothing is computed: each call is answered by the shapes that the table has for it. Torch's own
rules for shapes are not asked, for those that are written in Python import the whole of Dynamo.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.deploy.shipped.table import Call, Input

#: Tensors whose place a stand-in can take for one forward.
_REPLACED = (torch.Tensor, torch.nn.Parameter, FakeTensor)
#: What an argument may be beside tensors; each is told apart by its text.
_PLAIN = (
    bool | int | float | complex | str | torch.dtype | torch.layout | torch.memory_format | None
)


class NoCalls(Exception):
    """A forward makes other calls, or its calls tell nothing; the message says why."""


class Seen(torch.Tensor):
    """A tensor without memory that says it is on a device, and by which name calls know it."""

    call_name: str

    @staticmethod
    def __new__(cls, name: str, like: Input, device: torch.device) -> "Seen":
        made: Seen = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride, dtype=like.dtype, device=device
        )
        made.call_name = name
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, *call: Any) -> Any:
        raise NoCalls("a call is made after the forward")


class Watcher(TorchDispatchMode):
    """Sees every call that is made while it is active, as a text, and has it answered."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._count = 0  # of tensors that calls returned
        #: By name; torch detaches what a forward makes if anybody else holds it, so all are held.
        self._known: dict[str, Seen] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what makes torch skip it imports the whole of Dynamo

    def watch(self, module: torch.nn.Module, inputs: Sequence[Input]) -> str:
        """See the calls of one forward in the module's present mode; what it returns, as a text.

        Args:
            module: its tensors are replaced for the time of the call.
            inputs: the arguments of the forward.

        Raises NoCalls: if the forward needs values, or uses a tensor that is neither input,
            parameter nor buffer.
        """
        values = tuple(
            self.give(f"input {place}", each) if each.is_tensor else each.value
            for place, each in enumerate(inputs)
        )
        state: dict[str, torch.Tensor] = {}
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if type(tensor) not in _REPLACED or tensor.layout is not torch.strided:
                raise NoCalls(f"its {name} is no plain tensor")
            like = Input(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
            # its layout is part of what it is called: nothing else compares that
            state[name] = self.give(f"{name}: {like.dtype} {like.shape} {like.stride}", like)
        try:
            with self, torch.no_grad():
                found = torch.func.functional_call(module, state, values)
            return f"return {self.describe(found)}"
        except NoCalls:
            raise
        except Exception as ex:  # noqa: BLE001  # a stranger's forward raises anything at all
            raise NoCalls(f"{type(ex).__name__}: {ex}") from ex

    def give(self, name: str, like: Input) -> torch.Tensor:
        """A tensor that calls know by this name."""
        self._known[f"%{name}"] = made = Seen(name, like, self._device)
        return made

    def give_next(self, like: Input) -> torch.Tensor:
        """A tensor that a call makes, known by its number."""
        self._count += 1
        return self.give(str(self._count), like)

    def describe(self, value: Any) -> str:
        """An argument as a text that no other argument has."""
        if isinstance(value, Seen):
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

    def answer(self, text: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call returns, of tensors from `give_next` or among its arguments."""
        raise NotImplementedError

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(sorted((kwargs or {}).items()))
        text = f"{func}{self.describe(args)}{self.describe(named)}"
        return self.answer(text, func, args, named)


def follow_calls(
    module: torch.nn.Module,
    inputs: Sequence[Input],
    calls: Sequence[Call],
    device: torch.device,
) -> None:
    """Raise NoCalls unless a forward makes these very calls from inputs of these shapes.

    Args:
        module: in the mode in which it runs.
        inputs: the arguments of the forward.
        calls: of an entry's own module, its return as the last.
        device: of the module's tensors.
    """
    if not calls:
        raise NoCalls("the calls of the kernel's module are not known")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != device:
            raise NoCalls(f"its {name} is on {tensor.device}")
    follower = _Follower(calls, device)
    follower.compare(follower.watch(module, inputs))


class _Follower(Watcher):
    """Answers calls as a table has them, as long as they are the table's."""

    def __init__(self, calls: Sequence[Call], device: torch.device) -> None:
        super().__init__(device)
        self._calls = calls
        self._place = 0
        self._difference = ""  # the first; a forward may go on after it

    def answer(self, text: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._make(self.compare(text).made)

    def compare(self, text: str) -> Call:
        """The call of the table that this one is. Raises NoCalls: if it is another."""
        expected = self._calls[self._place] if self._place < len(self._calls) else None
        if expected is None or expected.text != text:
            theirs = expected.text if expected else "nothing more"
            self._difference = self._difference or (
                f"it calls {text:.200} where the kernel's module calls {theirs:.200}"
            )
        if self._difference:
            raise NoCalls(self._difference)
        self._place += 1
        return expected

    def _make(self, made: Any) -> Any:
        if isinstance(made, Input):
            return self.give_next(made) if made.is_tensor else made.value
        if isinstance(made, str):
            return self._known[made]
        return [self._make(each) for each in made]
