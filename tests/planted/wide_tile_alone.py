"""A reduction whose tile takes all registers: few warps are resident, and none is ready."""

import torch
import triton
import triton.language as tl

NAMES = ("occupancy_limited", "register_spill")
ROWS, COLUMNS = 4096, 16384


@triton.jit
def wide_tile_alone_sick(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * columns + lane)
    y = tl.exp(x - tl.max(x))
    tl.store(out_ptr + tl.program_id(0) * columns + lane, y / tl.sum(y))


@triton.jit
def wide_tile_alone_healthy(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * columns + lane)
    y = tl.exp(x - tl.max(x))
    tl.store(out_ptr + tl.program_id(0) * columns + lane, y / tl.sum(y))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wide_tile_alone_sick[(x.shape[0],)](x, out, x.shape[1], BLOCK=16384, num_warps=2)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wide_tile_alone_healthy[(x.shape[0],)](x, out, x.shape[1], BLOCK=16384, num_warps=32)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS)]
