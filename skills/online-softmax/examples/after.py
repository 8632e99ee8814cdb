"""Softmax of long rows, maximum and sum in one pass: each row is read twice instead of thrice."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 4096, 65536


@triton.jit
def softmax_rows(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    lanes = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), x_ptr.dtype.element_ty)
    total = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK):
        x = tl.load(x_ptr + row + start + lanes)
        higher = tl.maximum(top, x)
        # a lane that has seen nothing but -inf has a sum of 0, not -inf - -inf
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - shift) + tl.exp(x - shift)
        top = higher
    peak = tl.max(top, axis=0)
    whole = tl.sum(total * tl.exp(top - peak), axis=0)
    for start in range(0, n_cols, BLOCK):
        x = tl.load(x_ptr + row + start + lanes)
        tl.store(out_ptr + row + start + lanes, tl.exp(x - peak) / whole)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] % 2048 == 0, "whole blocks only"
        x = x.contiguous()
        out = torch.empty_like(x)
        softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=2048, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 6144)]
