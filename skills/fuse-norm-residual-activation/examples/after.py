"""Residual add, layer norm and exact GELU in one row kernel: three transfers."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 65536, 2048


@triton.jit
def add_norm_gelu(x_ptr, r_ptr, w_ptr, b_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    h = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0) + tl.load(
        r_ptr + row * n_cols + cols, mask=mask, other=0.0
    )
    mean = tl.sum(h, axis=0) / n_cols
    d = tl.where(mask, h - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, axis=0) / n_cols + 1e-5)
    y = d * rstd * tl.load(w_ptr + cols, mask=mask, other=0.0) + tl.load(
        b_ptr + cols, mask=mask, other=0.0
    )
    y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    tl.store(out_ptr + row * n_cols + cols, y, mask=mask)


class Model(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        x, residual = x.contiguous(), residual.contiguous()
        out = torch.empty_like(x)
        rows, cols = x.shape
        add_norm_gelu[(rows,)](
            x, residual, weight, bias, out, cols, BLOCK=triton.next_power_of_2(cols), num_warps=8
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS), torch.rand(COLS), torch.rand(COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 100), torch.randn(3, 100), torch.rand(100), torch.rand(100)]
