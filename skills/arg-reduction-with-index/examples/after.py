"""Row argmax in one kernel: each lane carries its best value and where it saw it."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 4096, 65536


@triton.jit
def row_argmax(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    place = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
        better = x > best
        place = tl.where(better, cols, place)
        best = tl.where(better, x, best)
    top = tl.max(best, axis=0)
    tl.store(out_ptr + row, tl.min(tl.where(best == top, place, 2147483647), axis=0).to(tl.int64))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(x.shape[0], device=x.device, dtype=torch.int64)
        row_argmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 9000)]
