"""Fills free blocks of device memory with NaN, so that an output that was never written shows.

Runs inside the worker, from a copy of this file.
"""

import torch

#: The CUDA allocator serves requests up to 1 MiB from a pool of their own, in blocks of 512 bytes
#: and up. Source: c10/cuda/CUDACachingAllocator.cpp.
_SMALL_BLOCK_BYTES = 2**20
_SMALL_BLOCKS = 32
_LARGE_BLOCKS = 8


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


def _free_blocks(block: torch.Tensor, reserved_bytes: int) -> int:
    """About how many free blocks of this size the allocator may hold, this one included."""
    size = max(1, block.numel() * block.element_size())
    if size <= _SMALL_BLOCK_BYTES:
        return _SMALL_BLOCKS
    if block.device.type != "cuda":
        return 2
    return min(_LARGE_BLOCKS, max(1, 1 + (reserved_bytes - torch.cuda.memory_allocated()) // size))
