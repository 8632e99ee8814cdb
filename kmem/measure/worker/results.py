"""What a forward returned: a description for the judge, and copies for it.

Runs inside the worker, from a copy of this file. Nothing is refused here: what is missing or of
another type is described.
"""

import torch
from failures import guarded
from tensors import SharedTensor


def leaves_of(result: object) -> list[object]:
    """The outputs in order: the items of a list or tuple, or the result itself."""
    return list(result) if isinstance(result, list | tuple) else [result]


def describe_result(result: object) -> dict[str, object]:
    """How the outputs came (`structure`), and the type, shape and dtype of each (`outputs`)."""
    outputs = []
    for leaf in leaves_of(result):
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            outputs.append({"type": f"{type(leaf).__module__}.{type(leaf).__name__}"})
            continue
        expanded = any(
            step == 0 and size > 1 for size, step in zip(leaf.shape, leaf.stride(), strict=True)
        )
        outputs.append(
            {
                "type": "tensor",
                "shape": list(leaf.shape),
                "dtype": str(leaf.dtype),
                "device": leaf.device.type,
                "expanded": expanded,
            }
        )
    return {
        "structure": type(result).__name__ if isinstance(result, list | tuple) else "tensor",
        "outputs": outputs,
    }


def is_plain(leaf: object, device: torch.device) -> bool:
    """Whether this is a tensor of no other class, on this kind of device."""
    return type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.device.type == device.type


def deliver_result(
    result: object, targets: list[SharedTensor], device: torch.device
) -> dict[str, object]:
    """Copy each output that is what the judge expects to its target, and describe all of them.

    Raises CandidateFailed: if a copy fails.
    """
    described = describe_result(result)
    for leaf, target in zip(leaves_of(result), targets):  # noqa: B905 - what is missing is described
        if (
            is_plain(leaf, device)
            and leaf.shape == target.value.shape
            and leaf.dtype == target.value.dtype
        ):
            guarded("forward", target.value.copy_, leaf)
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

    def take(self, index: int, result: object) -> None:
        """Of the call with this number."""
        self.described.append(describe_result(result))
        for leaf, (shape, places, values) in zip(leaves_of(result), self._targets):  # noqa: B905 - what is missing is described
            if is_plain(leaf, self._device) and leaf.shape == shape and leaf.dtype == values.dtype:
                values[index].copy_(leaf.detach()[places])
