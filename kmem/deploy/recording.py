"""The calls of a module as a table holds them, recorded without memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kmem.deploy.shipped.calls import NoCalls, Seen, Watcher
from kmem.deploy.shipped.table import Input


def record_calls(module: torch.nn.Module, inputs: Sequence[Input]) -> list[list[Any]]:
    """The calls of one forward, each its text and what it makes, its return as the last.

    They are those that are made on a GPU, where torch can tell those here.

    Args:
        module: in the mode in which it runs; its own tensors are not touched.
        inputs: the arguments of the forward.

    Returns:
        What `read_calls` of the shipped table reads; empty where calls do not tell what the module
        computes.
    """
    for device in ("cuda", "cpu"):
        recorder = _Recorder(torch.device(device))
        try:
            recorder.calls.append([recorder.watch(module, inputs), None])
            return recorder.calls
        except NoCalls:
            continue
    return []


class _Recorder(Watcher):
    """Writes down each call, and makes it on the device meta for the shapes that it returns."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.calls: list[list[Any]] = []
        self._likes: dict[str, torch.Tensor] = {}

    def give(self, name: str, like: Input) -> torch.Tensor:
        self._likes[name] = torch.empty_strided(
            like.shape, like.stride, dtype=like.dtype, device="meta"
        )
        return super().give(name, like)

    def answer(self, text: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        found = func(*self._without_memory(args), **self._without_memory(kwargs))
        own = {id(self._likes[each.call_name]): each for each in _tensors_in([args, kwargs])}
        answer, made = self._name(found, own)
        self.calls.append([text, made])
        return answer

    def _name(self, found: Any, own: Mapping[int, Seen]) -> tuple[Any, Any]:
        """What a call returned by its name, and as a table has it."""
        if isinstance(found, torch.Tensor):
            if id(found) in own:
                return own[id(found)], self.describe(own[id(found)])
            if found.device.type != "meta":
                raise NoCalls("a call makes memory")
            shape, stride = tuple(found.shape), tuple(found.stride())
            answer = self.give_next(Input(shape, stride, found.dtype))
            self._likes[str(self._count)] = found
            dtype = str(found.dtype).removeprefix("torch.")
            return answer, {"shape": shape, "stride": stride, "dtype": dtype}
        if isinstance(found, list | tuple):
            pairs = [self._name(each, own) for each in found]
            return [answer for answer, _ in pairs], [made for _, made in pairs]
        if found is None or isinstance(found, bool | int | float):
            return found, {"value": found}
        raise NoCalls(f"a call returns a {type(found).__name__}")

    def _without_memory(self, value: Any) -> Any:
        """Arguments as they are, with every tensor and device as on the device meta."""
        if isinstance(value, Seen):
            return self._likes[value.call_name]
        if isinstance(value, torch.device):
            return torch.device("meta")
        if isinstance(value, list | tuple):
            return type(value)(map(self._without_memory, value))
        if isinstance(value, Mapping):
            return {key: self._without_memory(each) for key, each in value.items()}
        return value


def _tensors_in(value: Any) -> list[Seen]:
    if isinstance(value, Seen):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [each for part in value for each in _tensors_in(part)]
    return []
