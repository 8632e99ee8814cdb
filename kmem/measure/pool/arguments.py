"""Lists of arguments that judge and workers share, with checksums, so that a change of an input is
seen.

A list of shared arguments lives as long as the judge and its buffers are overwritten from case to
case: a worker that remembers an answer by pointer, shape or identity is then wrong, and a worker
that was killed cannot hold memory that would be needed again.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import torch

from kmem.errors import ExecutorError
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.worker.tensors import SharedTensor, allocate_shared, encode_value


class SharedArguments:
    """Arguments under one name: shared tensors, and plain values as they are."""

    def __init__(
        self,
        name: str,
        like: Sequence[object],
        device: torch.device,
        directory: Path,
        *,
        ipc: bool,
        layouts: Sequence[tuple[tuple[int, ...], int] | None] | None = None,
    ) -> None:
        """Allocate; values are undefined until `write`.

        Args: name: what it is for; made unique. like: tensors whose shape, dtype and (where dense)
            strides are taken; other values are kept. layouts: per value (stride, offset) to use
            instead.
        Raises:
            ExecutorError: if there is no room for shared files.
        """
        self.name = f"{name}-{secrets.token_hex(4)}"  # a worker may serve several references
        self.items: list[object] = []
        for index, value in enumerate(like):
            if not isinstance(value, torch.Tensor):
                self.items.append(value)
                continue
            layout = layouts[index] if layouts else None
            stride, offset = layout if layout else (_dense_stride(value), 0)
            try:
                self.items.append(
                    allocate_shared(
                        tuple(value.shape),
                        tuple(stride),
                        value.dtype,
                        device,
                        str(directory),
                        ipc=ipc,
                        offset=offset,
                    )
                )
            except OSError as ex:
                self.remove()
                raise ExecutorError(
                    f"Cannot share {value.nbytes} bytes in {directory}: {ex.strerror}; free space "
                    f"there"
                ) from ex

    @property
    def values(self) -> list[object]:
        """What a model is called with."""
        return [item.value if isinstance(item, SharedTensor) else item for item in self.items]

    @property
    def nbytes(self) -> int:
        return sum(item.value.nbytes for item in self.items if isinstance(item, SharedTensor))

    def write(self, values: Sequence[object]) -> None:
        """Copy values of the same shapes in. Plain values must be those they were made with."""
        for item, value in zip(self.items, values, strict=True):
            if isinstance(item, SharedTensor):
                item.value.copy_(value)
        self.publish()

    def publish(self) -> None:
        for item in self.items:
            if isinstance(item, SharedTensor):
                item.publish()

    def fetch(self) -> None:
        for item in self.items:
            if isinstance(item, SharedTensor):
                item.fetch()

    def poison(self) -> None:
        """NaN (or the largest integer) everywhere, so that a worker that delivers nothing is seen."""
        for item in self.items:
            if isinstance(item, SharedTensor):
                value = item.value
                value.fill_(
                    float("nan")
                    if value.is_floating_point() or value.is_complex()
                    else _largest(value.dtype)
                )
        self.publish()

    def describe(self) -> list[object]:
        """For the worker's `attach` command. Raises TypeError: if a plain value cannot be passed."""
        return [
            {"tensor": item.descriptor} if isinstance(item, SharedTensor) else encode_value(item)
            for item in self.items
        ]

    def checksums(self) -> list[int]:
        """One number per shared tensor over its bits (elements, not padding)."""
        return [bit_sum(item.value) for item in self.items if isinstance(item, SharedTensor)]

    def remove(self) -> None:
        """Delete the shared files; memory goes when the last process unmaps it."""
        for item in self.items:
            if isinstance(item, SharedTensor) and item.descriptor["via"] == "file":
                os.unlink(item.descriptor["path"])
        self.items.clear()


def _dense_stride(value: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory, else contiguous ones."""
    stride = value.stride()
    span = (
        1 + sum((size - 1) * step for size, step in zip(value.shape, stride, strict=True))
        if value.numel()
        else 0
    )
    return tuple(stride) if span == value.numel() else tuple(value.contiguous().stride())


def _largest(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max
