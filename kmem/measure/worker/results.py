"""What a forward returned: read at once, a description for the judge, and copies for it.

Runs inside the worker, from a copy of this file, and is imported before any candidate, so that the
methods of torch that it uses are those of torch. Nothing is refused here: what is missing or of
another type is described.

A result is read inside the observed and timed call (`read_result`), by what a list or tuple really
holds: a class that makes its items only when somebody looks finds nobody looking later.
"""

from dataclasses import dataclass

import torch
from failures import guarded
from tensors import SharedTensor

_copy, _detach = torch.Tensor.copy_, torch.Tensor.detach
_getitem = torch.Tensor.__getitem__
_shape, _dtype = torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__
_device, _layout = torch.Tensor.device.__get__, torch.Tensor.layout.__get__
_strides = torch.Tensor.stride
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Result:
    """What one forward returned: how it came (tensor, list, tuple or a class), and its items."""

    structure: str
    leaves: tuple[object, ...]


def read_result(result: object) -> Result:
    """The items of a list or tuple, or the value itself; no method of the value's class is called.

    A class derived from tuple counts as a tuple where it has named fields, as torch's own have.
    """
    kind = type(result)
    if kind in _PLAIN:
        return Result("tensor", (result,))
    if kind is list:
        return Result("list", tuple(list.__iter__(result)))
    if kind is tuple or _has_named_fields(kind):
        return Result("tuple", tuple(tuple.__iter__(result)))
    return Result(_name_of(kind), (result,))


def _has_named_fields(kind: type) -> bool:
    if type.__getattribute__(kind, "__bases__") != (tuple,):
        return False
    names = type.__getattribute__(kind, "__dict__")
    return "_fields" in names or "n_sequence_fields" in names


def _name_of(kind: type) -> str:
    """As module and name, so that no class is taken for a builtin one by its name."""
    module, name = (
        type.__getattribute__(kind, "__module__"),
        type.__getattribute__(kind, "__qualname__"),
    )
    return f"{module}.{name}"


def describe_result(result: Result) -> dict[str, object]:
    """How the outputs came (`structure`), and the type, shape and dtype of each (`outputs`)."""
    outputs = []
    for leaf in result.leaves:
        if type(leaf) not in _PLAIN:
            outputs.append({"type": _name_of(type(leaf))})
            continue
        if _layout(leaf) is not torch.strided:
            outputs.append({"type": f"tensor of layout {_layout(leaf)}"})
            continue
        shape = _shape(leaf)
        expanded = any(
            step == 0 and size > 1 for size, step in zip(shape, _strides(leaf), strict=True)
        )
        outputs.append(
            {
                "type": "tensor",
                "shape": list(shape),
                "dtype": str(_dtype(leaf)),
                "device": _device(leaf).type,
                "expanded": expanded,
            }
        )
    return {"structure": result.structure, "outputs": outputs}


def is_plain(leaf: object, device: torch.device) -> bool:
    """Whether this is a dense tensor of no other class, on this kind of device."""
    return (
        type(leaf) in _PLAIN
        and _device(leaf).type == device.type
        and _layout(leaf) is torch.strided
    )


def deliver_result(
    result: Result, targets: list[SharedTensor], device: torch.device
) -> dict[str, object]:
    """Copy each output that is what the judge expects to its target, and describe all of them.

    Raises CandidateFailed: if a copy fails.
    """
    described = describe_result(result)
    for leaf, target in zip(result.leaves, targets):  # noqa: B905 - what is missing is described
        if (
            is_plain(leaf, device)
            and _shape(leaf) == _shape(target.value)
            and _dtype(leaf) == _dtype(target.value)
        ):
            guarded("forward", _copy, target.value, _detach(leaf))
            guarded("forward", target.publish)
    return described


class SpotCopies:
    """Takes a few elements of each timed result, where the judge asked for them.

    `shared` are the attached arguments: for each output the places, (dimensions, count) int64, and
    where the elements go, (calls, count). `described` has the description of each result.
    """

    def __init__(
        self, shared: list[SharedTensor], shapes: list[list[int]], device: torch.device
    ) -> None:
        self._device = device
        self._targets = [
            (tuple(shape), tuple(places.value), values.value)
            for shape, places, values in zip(shapes, shared[::2], shared[1::2], strict=True)
        ]
        self.described: list[dict[str, object]] = []

    def take(self, index: int, result: Result) -> None:
        """Of the call with this number."""
        self.described.append(describe_result(result))
        # what is missing is described
        for leaf, (shape, places, values) in zip(result.leaves, self._targets):  # noqa: B905
            if (
                is_plain(leaf, self._device)
                and _shape(leaf) == shape
                and _dtype(leaf) == _dtype(values)
            ):
                _copy(_getitem(values, index), _getitem(_detach(leaf), places))
