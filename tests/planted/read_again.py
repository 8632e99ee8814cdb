"""A chain of six launches, each through memory, where one launch does."""

import torch
import triton
import triton.language as tl

NAMES = ("redundant_traffic",)
SIZE = 1 << 26


@triton.jit
def read_again_sick(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, tl.load(x_ptr + place) * 1.5 + 0.25)


@triton.jit
def read_again_healthy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    for _ in tl.static_range(6):
        x = x * 1.5 + 0.25
    tl.store(out_ptr + place, x)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x * 1.5 + 0.25
        return x


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        source = x
        for _ in range(6):
            read_again_sick[(x.numel() // 2048,)](source, out, BLOCK=2048)
            source = out
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        read_again_healthy[(x.numel() // 2048,)](x, out, BLOCK=2048)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
