"""Lists of tensors and plain values that a judge and its workers see.

A list of shared arguments lives as long as the judge, and its buffers are overwritten from case to
case: a worker that remembers an answer by pointer, shape or identity is then wrong, and a worker
that was killed cannot hold memory that would be needed again.

    shared = SharedArguments("inputs", values, placement)  # allocated like these values
    shared.write(values)
    worker.attach(shared)  # the worker's commands know the list by shared.name
    before = shared.checksums()

Whatever a worker maps it may also write to, at any time. What the judge reasons from is therefore
`private`: it lies in memory of the judge's own, and is copied to where workers see it.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from kmem.errors import ExecutorError
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.worker.overlap import overlaps_itself
from kmem.measure.worker.tensors import (
    Placement,
    SharedTensor,
    allocate_shared,
    empty_at,
    encode_value,
    span_of,
    where_once,
)

#: Stride in elements, and offset of the first element in its storage.
Layout = tuple[tuple[int, ...], int]
#: Memory starts at a multiple of this, so that a longer offset aligns a tensor no otherwise.
#: Source: torch 2.11, CUDACachingAllocator.cpp, kMinBlockSize; a file is mapped at a page.
_ALIGNED_BYTES = 512


def given_layouts(values: Sequence[object], placement: Placement) -> list[Layout | None]:
    """How the tensors of a problem lie in memory, gaps between elements included.

    A kernel whose strides are constants runs for these alone, and is as fast as these let it be.

    Returns:
        None for plain values, and for tensors of which elements are one in memory, where the judge
        cannot have that: windows that overlap, and expanded ones that travel through the host.
    """
    return [
        _given_layout(value, placement) if isinstance(value, torch.Tensor) else None
        for value in values
    ]


def _given_layout(value: torch.Tensor, placement: Placement) -> Layout | None:
    stride = tuple(value.stride())
    once = value[where_once(value)] if _can_hold_expanded(placement) else value
    if overlaps_itself(once.shape, stride):
        return None
    return stride, value.storage_offset() % (_ALIGNED_BYTES // value.element_size())


def _can_hold_expanded(placement: Placement) -> bool:
    return placement.device.type == "cpu" or placement.ipc


class SharedArguments:
    """Arguments under one name: shared tensors, and plain values as they are."""

    def __init__(
        self,
        name: str,
        like: Sequence[object],
        placement: Placement,
        *,
        layouts: Sequence[Layout | None] | None = None,
        private: bool = False,
    ) -> None:
        """Allocate; values are undefined until `write`.

        Args:
            name: what the list is for; made unique.
            like: tensors whose shape, dtype and strides are taken, these where elements lie one
                beside the other, or are one in memory; other values are kept.
            layouts: to use instead, one for each value, None for the same. What lies in gaps that
                they leave is no number (or the largest integer): no kernel may use it.
            private: keep values in memory of the judge's own too, in the same layout.

        Raises:
            ExecutorError: if there is no room for shared files.
        """
        self.name = f"{name}-{secrets.token_hex(4)}"  # a worker may serve several references
        #: Whether elements may share memory: not where values travel through the host.
        self.can_hold_expanded = _can_hold_expanded(placement)
        self.items: list[object] = []
        self._private: list[torch.Tensor | None] = []  # one for each item
        for index, value in enumerate(like):
            if not isinstance(value, torch.Tensor):
                self.items.append(value)
                self._private.append(None)
                continue
            layout = layouts[index] if layouts else None
            stride, offset = layout or (_usual_stride(value, self.can_hold_expanded), 0)
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
            _poison_gaps(shared.value)
            self.items.append(shared)
            self._private.append(_empty_alike(shared.value) if private else None)

    @property
    def values(self) -> list[object]:
        """What the judge's own module is called with: private where they are kept."""
        return [
            _value_of(item) if own is None else own
            for item, own in zip(self.items, self._private, strict=True)
        ]

    @property
    def shared_values(self) -> list[object]:
        """What workers are called with, and after `fetch` what they left there."""
        return [_value_of(item) for item in self.items]

    @property
    def nbytes(self) -> int:
        return sum(item.value.nbytes for item in self.items if isinstance(item, SharedTensor))

    def write(self, values: Sequence[object]) -> None:
        """Copy values of the same shapes in. Plain values must be those they were made with."""
        for place, value in zip(self.values, values, strict=True):
            if isinstance(place, torch.Tensor):
                _copy_once(place, value)
        self.publish()

    def publish(self) -> None:
        """Let workers see what `values` are now."""
        for item, own in zip(self.items, self._private, strict=True):
            if isinstance(item, SharedTensor):
                if own is not None:
                    _copy_once(item.value, own)
                item.publish()

    def fetch(self) -> None:
        """Take over what workers wrote, but into nothing private."""
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
        """One number per tensor over its bits as workers see it (elements, not padding)."""
        return [bit_sum(item.value) for item in self.items if isinstance(item, SharedTensor)]

    def own_checksums(self) -> list[int]:
        """The same of `values`, which workers cannot change where they are private."""
        return [bit_sum(value) for value in self.values if isinstance(value, torch.Tensor)]

    def remove(self) -> None:
        """Delete the shared files; memory goes when the last process unmaps it."""
        for item in self.items:
            if isinstance(item, SharedTensor) and item.descriptor["via"] == "file":
                os.unlink(item.descriptor["path"])
        self.items.clear()
        self._private.clear()


def _value_of(item: object) -> object:
    return item.value if isinstance(item, SharedTensor) else item


def _empty_alike(value: torch.Tensor) -> torch.Tensor:
    """Memory of its own with the same sizes, strides and offset."""
    offset = value.storage_offset()
    return empty_at(value.shape, value.stride(), offset, value.dtype, value.device)


def _usual_stride(value: torch.Tensor, may_expand: bool) -> tuple[int, ...]:
    """The tensor's own strides if it fills its memory, else contiguous ones.

    Args:
        may_expand: whether elements that are one in memory stay so.
    """
    stride = value.stride()
    once = value[where_once(value)] if may_expand else value
    fills = span_of(once.shape, stride) == once.numel()
    return tuple(stride) if fills else tuple(value.contiguous().stride())


def _poison_gaps(value: torch.Tensor) -> None:
    """Poison what a new tensor leaves out of its memory: a sum would not show zeros there."""
    offset = value.storage_offset()
    span = span_of(value.shape, value.stride(), offset)
    if span > value[where_once(value)].numel():
        value.as_strided((span,), (1,), 0).fill_(_poison_of(value.dtype))


def _copy_once(place: torch.Tensor, value: torch.Tensor) -> None:
    """Copy a tensor, once where elements of the place share memory."""
    once = where_once(place)
    place[once].copy_(value[once])


def _poison_of(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max
