"""Scale and shift of a head-split view read through its strides: the tensor moves twice."""

import torch
import triton
import triton.language as tl

BATCH = 16
LENGTH = 4096
HEADS = 16
DIM = 128


@triton.jit
def scale_shift(
    x_ptr,
    out_ptr,
    stride_b,
    stride_s,
    stride_h,
    stride_d,
    length,
    heads,
    dim,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1) % heads
    batch = tl.program_id(1) // heads
    cols = tl.arange(0, BLOCK)
    mask = (rows < length)[:, None] & (cols < dim)[None, :]
    x = tl.load(
        x_ptr
        + batch * stride_b
        + head * stride_h
        + rows[:, None] * stride_s
        + cols[None, :] * stride_d,
        mask=mask,
    )
    out = out_ptr + (tl.program_id(1) * length + rows[:, None]) * dim + cols[None, :]
    tl.store(out, x * 0.5 + 1.0, mask=mask)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, heads, dim = x.shape
        out = torch.empty(batch, heads, length, dim, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(length, 32), batch * heads)
        scale_shift[grid](
            x,
            out,
            *x.stride(),
            length,
            heads,
            dim,
            ROWS=32,
            BLOCK=triton.next_power_of_2(dim),
            num_warps=4,
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(BATCH, LENGTH, HEADS, DIM)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(2, 40, 3, 20)]
