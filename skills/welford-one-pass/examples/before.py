"""Row variance in two passes, mean first and squared deviations second: each row is read twice."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 1024, 262144


@triton.jit
def row_variance(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = x_ptr + tl.program_id(0) * n_cols
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK):
        acc += tl.load(row + start + tl.arange(0, BLOCK))
    mean = tl.sum(acc, axis=0) / n_cols
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK):
        d = tl.load(row + start + tl.arange(0, BLOCK)) - mean
        acc += d * d
    tl.store(out_ptr + tl.program_id(0), tl.sum(acc, axis=0) / n_cols)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] % 2048 == 0, "whole blocks only"
        x = x.contiguous()
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        row_variance[(x.shape[0],)](x, out, x.shape[1], BLOCK=2048, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS) + 3.0]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 8192) + 3.0]
