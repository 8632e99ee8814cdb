"""Rotary embedding in one kernel: both halves of a token's heads are loaded and stored once."""

import torch
import triton
import triton.language as tl

BATCH = 8
LENGTH = 4096
HEADS = 32
DIM = 128


@triton.jit
def rotate(
    x_ptr, cos_ptr, sin_ptr, out_ptr, length, HEADS_PER_TOKEN: tl.constexpr, HALF: tl.constexpr
):
    token = tl.program_id(0)
    d = tl.arange(0, HALF)
    heads = tl.arange(0, HEADS_PER_TOKEN)
    c = tl.load(cos_ptr + (token % length) * HALF + d)[None, :]
    s = tl.load(sin_ptr + (token % length) * HALF + d)[None, :]
    offsets = (token * HEADS_PER_TOKEN + heads)[:, None] * (2 * HALF) + d[None, :]
    x1 = tl.load(x_ptr + offsets)
    x2 = tl.load(x_ptr + offsets + HALF)
    tl.store(out_ptr + offsets, x1 * c - x2 * s)
    tl.store(out_ptr + offsets + HALF, x2 * c + x1 * s)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, heads, dim = x.shape
        x = x.contiguous()
        cos = cos.contiguous()
        sin = sin.contiguous()
        out = torch.empty_like(x)
        rotate[(batch * length,)](
            x, cos, sin, out, length, HEADS_PER_TOKEN=heads, HALF=dim // 2, num_warps=4
        )
        return out


def make_inputs(batch: int, length: int, heads: int, dim: int) -> list[torch.Tensor]:
    angle = torch.rand(length, dim // 2) * 6.28
    return [torch.randn(batch, length, heads, dim), angle.cos(), angle.sin()]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(BATCH, LENGTH, HEADS, DIM)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(2, 5, 4, 16)
