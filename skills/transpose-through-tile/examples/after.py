"""A transposing copy by tiles: dense rows are read, exchanged on chip, and written dense again."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 16384, 16384


@triton.jit
def transpose(x_ptr, out_ptr, n_rows, n_cols, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(
        x_ptr + rows[:, None] * n_cols + cols[None, :],
        mask=(rows < n_rows)[:, None] & (cols < n_cols)[None, :],
    )
    mask = (cols < n_cols)[:, None] & (rows < n_rows)[None, :]
    tl.store(out_ptr + cols[:, None] * n_rows + rows[None, :], tl.trans(x), mask=mask)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, cols = x.shape
        out = torch.empty(cols, rows, device=x.device, dtype=x.dtype)
        transpose[(triton.cdiv(rows, 64), triton.cdiv(cols, 64))](x, out, rows, cols, BLOCK=64)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(40, 70)]
