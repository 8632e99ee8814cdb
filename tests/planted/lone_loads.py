"""One warp a program, one dependent load at a time."""

import torch
import triton
import triton.language as tl

NAMES = ("latency", "occupancy_limited")
PROGRAMS, STEPS = 16896, 128


@triton.jit
def lone_loads_sick(x_ptr, out_ptr, steps, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    place = tl.program_id(0) * steps * BLOCK + lane
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(steps):
        x = tl.load(x_ptr + place)
        total += x
        place += tl.where(x >= 0, BLOCK, 0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


@triton.jit
def lone_loads_healthy(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
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
        out = x.new_empty(PROGRAMS)
        lone_loads_sick[(PROGRAMS,)](x, out, STEPS, BLOCK=32, num_warps=1)
        return out.sum()


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(PROGRAMS)
        lone_loads_healthy[(PROGRAMS,)](x, out, STEPS * 32, BLOCK=4096)
        return out.sum()


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(PROGRAMS * STEPS * 32)]
