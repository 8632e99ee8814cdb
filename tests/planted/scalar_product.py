"""A product of bfloat16 by multiplying and adding on the scalar units."""

import torch
import triton
import triton.language as tl

NAMES = ("tensor_core_idle", "fma_bound")
SIZE = 4096


@triton.jit
def scalar_product_sick(a_ptr, b_ptr, out_ptr, size, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for inner in range(size):
        a = tl.load(a_ptr + rows * size + inner).to(tl.float32)
        b = tl.load(b_ptr + inner * size + columns).to(tl.float32)
        total += a[:, None] * b[None, :]
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total)


@triton.jit
def scalar_product_healthy(a_ptr, b_ptr, out_ptr, size, TILE: tl.constexpr, DEPTH: tl.constexpr):
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
        scalar_product_sick[(size // 64, size // 64)](a, b, out, size, TILE=64)
        return out


class Healthy(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        size = a.shape[0]
        out = a.new_empty((size, size), dtype=torch.float32)
        scalar_product_healthy[(size // 64, size // 64)](a, b, out, size, TILE=64, DEPTH=64)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE, SIZE).bfloat16(), torch.rand(SIZE, SIZE).bfloat16()]
