"""Lists of tensors and plain values that a judge and its workers see.

A list of shared arguments lives as long as the judge, and its buffers are overwritten from case to
case: a worker that remembers an answer by pointer, shape or identity is then wrong, and a worker
that was killed cannot hold memory that would be needed again.

    shared = SharedArguments("inputs", values, placement)  # allocated like these values
    shared.write(values)
    worker.attach(shared)  # the worker's commands know the list by shared.name
    before = shared.checksums()
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from kmem.errors import ExecutorError
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.worker.tensors import Placement, SharedTensor, allocate_shared, encode_value

#: Stride in elements, and offset of the first element in its storage.
Layout = tuple[tuple[int, ...], int]


class SharedArguments:
    """Arguments under one name: shared tensors, and plain values as they are."""

    def __init__(
        self,
        name: str,
        like: Sequence[object],
        placement: Placement,
        *,
        layouts: Sequence[Layout | None] | None = None,
    ) -> None:
        """Allocate; values are undefined until `write`.

        Args:
            name: what the list is for; made unique.
            like: tensors whose shape, dtype and (where dense) strides are taken; other values are
                kept.
            layouts: to use instead, one for each value.

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
                shared = allocate_shared(
                    tuple(value.shape), tuple(stride), value.dtype, placement, offset=offset
                )
            except OSError as ex:
                self.remove()
                raise ExecutorError(
                    f"Cannot share {value.nbytes} bytes in {placement.directory}: {ex.strerror}; "
                    f"free space there"
                ) from ex
            self.items.append(shared)

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
        """Write NaN (or the largest integer), so that a worker that delivers nothing is seen."""
        for item in self.items:
            if isinstance(item, SharedTensor):
                item.value.fill_(_poison_of(item.value.dtype))
        self.publish()

    def describe(self) -> list[object]:
        """The values of an `Attach` command.

        Raises TypeError: if a plain value cannot be passed.
        """
        return [
            {"tensor": item.descriptor} if isinstance(item, SharedTensor) else encode_value(item)
            for item in self.items
        ]

    @contextmanager
    def open_files(self) -> Iterator[list[int]]:
        """The shared files, open, in the order of `describe`: for a worker that opens no file."""
        with ExitStack() as opened:
            files = []
            for item in self.items:
                if isinstance(item, SharedTensor) and item.descriptor["via"] == "file":
                    files.append(os.open(item.descriptor["path"], os.O_RDWR | os.O_CLOEXEC))
                    opened.callback(os.close, files[-1])
            yield files

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
    span = 0
    if value.numel():
        span = 1 + sum((size - 1) * step for size, step in zip(value.shape, stride, strict=True))
    return tuple(stride) if span == value.numel() else tuple(value.contiguous().stride())


def _poison_of(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max
