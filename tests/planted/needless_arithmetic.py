"""A polynomial of degree 512 by Horner, where degree 4 is asked for."""

import torch
import triton
import triton.language as tl

NAMES = ("fma_bound", "issue_bound", "algorithmic")
SIZE = 1 << 25


@triton.jit
def needless_arithmetic_sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    total = x
    for _ in range(512):
        total = total * x + 0.5
    tl.store(out_ptr + place, total)


@triton.jit
def needless_arithmetic_healthy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    total = x
    for _ in tl.static_range(4):
        total = total * x + 0.5
    tl.store(out_ptr + place, total)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (((x * x + 0.5) * x + 0.5) * x + 0.5) * x + 0.5


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        needless_arithmetic_sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        needless_arithmetic_healthy[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
