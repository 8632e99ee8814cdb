"""One long row added to many: what is streamed pushes that row out of L2 again and again."""

import torch
import triton
import triton.language as tl

ROWS, COLS = 64, 1 << 22


@triton.jit
def shift_rows(x_ptr, shift_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(1).to(tl.int64) * n_cols + cols
    x = tl.load(x_ptr + place)
    shift = tl.load(shift_ptr + cols)
    tl.store(out_ptr + place, x + shift)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        x, shift = x.contiguous(), shift.contiguous()
        assert shift.numel() % 1024 == 0, "whole blocks only"
        out = torch.empty_like(x)
        shift_rows[(shift.numel() // 1024, x.shape[0])](
            x, shift, out, shift.numel(), BLOCK=1024, num_warps=4
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, COLS), torch.randn(COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(3, 2048), torch.randn(2048)]
