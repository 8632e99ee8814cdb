# problem: row_sum
# class: rows through tensor descriptors that the kernel makes
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def by_descriptor(x_ptr, y_ptr, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_tensor_descriptor(
        x_ptr, shape=[rows, columns], strides=[columns, 1], block_shape=[BM, BN]
    )
    first = tl.program_id(0) * BM
    total = tl.zeros((BM,), tl.float32)
    for start in range(0, columns, BN):
        total += tl.sum(x.load([first, start]), 1)
    r = first + tl.arange(0, BM)
    tl.store(y_ptr + r, total, mask=r < rows)


@triton.jit
def plainly(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = (c < columns) & (row >= 0)
        total += tl.load(x_ptr + row * columns + c, mask=mask, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, 0))


def allocate(size: int, alignment: int, stream) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        if columns % 4 == 0 and x.data_ptr() % 16 == 0 and rows and columns:
            triton.set_allocator(allocate)
            by_descriptor[(triton.cdiv(rows, 16),)](x, y, rows, columns, BM=16, BN=32)
        else:
            plainly[(rows,)](x, y, columns, BLOCK=64)
        return y
