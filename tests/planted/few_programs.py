"""A sum by eight programs, where the card has 132 processors."""

import torch
import triton
import triton.language as tl

NAMES = ("low_parallelism",)
SIZE = 1 << 26


@triton.jit
def few_programs_sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        total += tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


@triton.jit
def few_programs_healthy(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        total += tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(8)
        few_programs_sick[(8,)](x, out, x.numel() // 8, BLOCK=4096)
        return out.sum()


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(2048)
        few_programs_healthy[(2048,)](x, out, x.numel() // 2048, BLOCK=4096)
        return out.sum()


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
