"""Mean absolute deviation of each row as two kernels: the second reads the whole tensor from DRAM
again.
"""

import torch
import triton
import triton.language as tl

ROWS, COLS = 16384, 16384


@triton.jit
def row_mean(x_ptr, mean_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(mean_ptr + row, tl.sum(acc, axis=0) / n_cols)


@triton.jit
def row_deviation(x_ptr, mean_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.load(mean_ptr + row)
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        acc += tl.where(cols < n_cols, tl.abs(x - mean), 0.0)
    tl.store(out_ptr + row, tl.sum(acc, axis=0) / n_cols)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        mean = torch.empty(rows, device=x.device, dtype=x.dtype)
        out = torch.empty_like(mean)
        row_mean[(rows,)](x, mean, cols, BLOCK=4096, num_warps=8)
        row_deviation[(rows,)](x, mean, out, cols, BLOCK=4096, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 9000)]
