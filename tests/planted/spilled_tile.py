"""A product tile of 256 x 256 on four warps: its accumulator does not fit into registers."""

import torch
import triton
import triton.language as tl

NAMES = ("register_spill",)
SIZE = 2048


@triton.jit
def spilled_tile_sick(a_ptr, b_ptr, out_ptr, size, TILE: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, size, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * size + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total)


@triton.jit
def spilled_tile_healthy(a_ptr, b_ptr, out_ptr, size, TILE: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, size, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        a = tl.load(a_ptr + rows[:, None] * size + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total)


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).float()


class Sick(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        size = a.shape[0]
        out = a.new_empty((size, size), dtype=torch.float32)
        spilled_tile_sick[(size // 256, size // 256)](
            a, b, out, size, TILE=256, DEPTH=64, num_warps=4
        )
        return out


class Healthy(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        size = a.shape[0]
        out = a.new_empty((size, size), dtype=torch.float32)
        grid = (size // 128, size // 128)
        spilled_tile_healthy[grid](a, b, out, size, TILE=128, DEPTH=64, num_warps=8, num_stages=3)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE, SIZE).bfloat16(), torch.rand(SIZE, SIZE).bfloat16()]
