"""Rows of 96 in tiles of 2048: nineteen lanes of twenty do nothing."""

import torch
import triton
import triton.language as tl

NAMES = ("divergence_or_masking",)
ROWS, COLUMNS = 1 << 18, 96


@triton.jit
def mostly_masked_sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    place = tl.program_id(0) * columns + lane
    x = tl.load(x_ptr + place, mask=lane < columns)
    tl.store(out_ptr + place, tl.exp(x) * 2.0 + tl.sin(x), mask=lane < columns)


@triton.jit
def mostly_masked_healthy(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < size)
    tl.store(out_ptr + place, tl.exp(x) * 2.0 + tl.sin(x), mask=place < size)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * 2.0 + torch.sin(x)


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        mostly_masked_sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=2048, num_warps=8)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        mostly_masked_healthy[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS)]
