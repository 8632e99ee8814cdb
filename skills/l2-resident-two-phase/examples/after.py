"""Mean absolute deviation of each row in one kernel: few fat programs, so that the second read of a
row hits cache.
"""

import torch
import triton
import triton.language as tl

ROWS, COLS = 16384, 16384


@triton.jit
def row_deviation(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        acc += tl.load(
            x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0, eviction_policy="evict_last"
        )
    mean = tl.sum(acc, axis=0) / n_cols
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(
            x_ptr + row * n_cols + cols,
            mask=cols < n_cols,
            other=0.0,
            eviction_policy="evict_first",
        )
        acc += tl.where(cols < n_cols, tl.abs(x - mean), 0.0)
    tl.store(out_ptr + row, tl.sum(acc, axis=0) / n_cols)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        # four rows per SM: 34 MB over the GPU
        row_deviation[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096, num_warps=16)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 9000)]
