"""Squared ReLU that masks every block, though the size is a multiple of a block."""

import torch
import triton
import triton.language as tl

SIZE = 1 << 26


@triton.jit
def squared_relu(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < size)
    y = tl.where(x < 0, 0.0, x)
    tl.store(out_ptr + place, y * y, mask=place < size)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.numel() % 1024 == 0, "whole blocks only"
        x = x.contiguous()
        out = torch.empty_like(x)
        squared_relu[(x.numel() // 1024,)](x, out, x.numel(), BLOCK=1024, num_warps=4)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(4096)]
