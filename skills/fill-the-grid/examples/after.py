"""Matrix-vector product with 4 rows per program: 1024 programs, several per SM."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 4096, 65536


@triton.jit
def matvec(a_ptr, x_ptr, out_ptr, n_rows, n_cols, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    acc = tl.zeros((BLOCK_M, BLOCK_K), a_ptr.dtype.element_ty)
    for start in range(0, n_cols, BLOCK_K):
        cols = start + tl.arange(0, BLOCK_K)
        mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
        a = tl.load(a_ptr + rows[:, None] * n_cols + cols[None, :], mask=mask, other=0.0)
        acc += a * tl.load(x_ptr + cols, mask=cols < n_cols, other=0.0)[None, :]
    tl.store(out_ptr + rows, tl.sum(acc, axis=1), mask=rows < n_rows)


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a = a.contiguous()
        out = torch.empty(a.shape[0], device=a.device, dtype=a.dtype)
        matvec[(triton.cdiv(a.shape[0], 4),)](
            a, x, out, a.shape[0], a.shape[1], BLOCK_M=4, BLOCK_K=1024, num_warps=4
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLS), torch.rand(COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(10, 1500), torch.rand(1500)]
