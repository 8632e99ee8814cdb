"""Fills free blocks of device memory with NaN, so that an output that was never written shows.

Runs inside the worker, from a copy of this file.
"""

import math

import torch

#: The CUDA allocator serves requests up to 1 MiB from a pool of their own, in blocks of 512 bytes
#: and up. Source: c10/cuda/CUDACachingAllocator.cpp.
_SMALL_BLOCK_BYTES = 2**20
_LEAST_BLOCK_BYTES = 2**9
_SMALL_BLOCKS = 32
_LARGE_BLOCKS = 8
#: Of each power of two between those, so many blocks: two segments of that pool, which have 2 MiB.
_SWEPT_BLOCKS = 4


def poison_free_memory(
    layouts: list[tuple[tuple[int, ...], torch.dtype]], device: torch.device, reserved_bytes: int
) -> None:
    """Fill free blocks of the sizes of the outputs with NaN (or the largest integer).

    One block of each size is not enough: a scratch buffer of the candidate may take it, and its
    output then lands in another block that still holds the right answer of an earlier call.

    Args:
        layouts: shape and dtype of each output.
        reserved_bytes: what the allocator held after the last call, whether or not it has given it
            back to the driver since.
    """
    if any(_bytes_of(shape, dtype) <= _SMALL_BLOCK_BYTES for shape, dtype in layouts):
        _sweep_small_blocks(device)
    blocks = []
    for shape, dtype in layouts:
        try:
            block = torch.empty(shape, dtype=dtype, device=device)
            blocks.append(block)
            for _ in range(_free_blocks(block, reserved_bytes) - 1):
                blocks.append(torch.empty_like(block))
        except torch.OutOfMemoryError:  # then there is no free block left that is not poisoned
            break
    for block in blocks:
        if block.dtype.is_floating_point or block.dtype.is_complex:
            block.fill_(float("nan"))
        else:
            block.fill_(True if block.dtype is torch.bool else torch.iinfo(block.dtype).max)


def _sweep_small_blocks(device: torch.device) -> None:
    """Fill what is free for small requests, the larger pieces first, with the bytes of a NaN.

    A small output lies behind its call's scratch memory, further on than so many blocks of its own
    size reach: the loss of a batch was taken for the next one's, which differs by less than it may.
    """
    blocks, size = [], _SMALL_BLOCK_BYTES
    while size >= _LEAST_BLOCK_BYTES:
        try:
            for _ in range(_SWEPT_BLOCKS):
                blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:  # smaller ones may still be free
            pass
        size //= 2
    for block in blocks:
        block.fill_(0xFF)


def _bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return max(1, math.prod(shape) * dtype.itemsize)


def _free_blocks(block: torch.Tensor, reserved_bytes: int) -> int:
    """About how many free blocks of this size the allocator may hold, this one included."""
    size = _bytes_of(tuple(block.shape), block.dtype)
    if size <= _SMALL_BLOCK_BYTES:
        return _SMALL_BLOCKS
    if block.device.type != "cuda":
        return 2
    return min(_LARGE_BLOCKS, max(1, 1 + (reserved_bytes - torch.cuda.memory_allocated()) // size))
