"""Programs that hold 200 KB of shared memory each for a copy: one fits a processor."""

import torch
import triton
import triton.language as tl

NAMES = ("occupancy_limited", "latency")
SIZE = 1 << 26


@triton.jit
def one_program_a_processor_sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    rows = tl.arange(0, 128)
    columns = tl.arange(0, 128)
    places = rows[:, None] * 128 + columns[None, :]
    begin = tl.program_id(0) * STEPS * BLOCK
    for step in range(STEPS):
        x = tl.load(x_ptr + begin + step * BLOCK + places)
        y = tl.trans(tl.trans(x) + 1.0)
        tl.store(out_ptr + begin + step * BLOCK + places, y)


@triton.jit
def one_program_a_processor_healthy(x_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + place, tl.load(x_ptr + place) + 1.0)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1.0


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        grid = (x.numel() // (16384 * 8),)
        one_program_a_processor_sick[grid](x, out, x.numel(), BLOCK=16384, STEPS=8, num_warps=4)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        one_program_a_processor_healthy[(x.numel() // 2048,)](x, out, BLOCK=2048)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
