"""A chain of 64 launches over a vector that one launch holds."""

import torch
import triton
import triton.language as tl

NAMES = ("launch_overhead",)
SIZE, STEPS = 1 << 14, 64


@triton.jit
def tiny_launches_sick(x_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + place, tl.load(x_ptr + place) * 1.01)


@triton.jit
def tiny_launches_healthy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, tl.load(x_ptr + place) * 1.01)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.01


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        for _ in range(STEPS):
            tiny_launches_sick[(out.numel() // 1024,)](out, BLOCK=1024)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        tiny_launches_healthy[(x.numel() // 1024,)](x, out, BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
