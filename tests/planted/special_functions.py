"""Sixteen exponentials an element, where one does."""

import torch
import triton
import triton.language as tl

NAMES = ("special_function_bound",)
SIZE = 1 << 25


@triton.jit
def special_functions_sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for power in tl.static_range(64):
        total += tl.exp(x * (1.0 + power))
    tl.store(out_ptr + place, total)


@triton.jit
def special_functions_healthy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.exp(tl.load(x_ptr + place))
    total = x
    factor = x
    for _ in tl.static_range(3):
        factor *= x
        total += factor
    tl.store(out_ptr + place, total)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x)


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        special_functions_sick[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        special_functions_healthy[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
