"""Column sums with lanes down a column, one program per column."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 262144, 1024


@triton.jit
def column_sum(x_ptr, out_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    col = tl.program_id(0)
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_rows, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        acc += tl.load(x_ptr + rows * n_cols + col, mask=rows < n_rows, other=0.0)
    tl.store(out_ptr + col, tl.sum(acc, axis=0))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape[1], device=x.device, dtype=x.dtype)
        column_sum[(x.shape[1],)](x, out, x.shape[0], x.shape[1], BLOCK=1024, num_warps=4)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(200, 40)]
