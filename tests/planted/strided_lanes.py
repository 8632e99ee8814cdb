"""Lanes that run down a column, a row apart: a sector for each element."""

import torch
import triton
import triton.language as tl

NAMES = ("uncoalesced",)
ROWS, COLUMNS = 8192, 8192


@triton.jit
def strided_lanes_sick(x_ptr, out_ptr, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = row * columns + tl.program_id(1)
    x = tl.load(x_ptr + places, mask=row < rows)
    tl.store(out_ptr + places, x * 2.0, mask=row < rows)


@triton.jit
def strided_lanes_healthy(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < size)
    tl.store(out_ptr + place, x * 2.0, mask=place < size)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.shape[0], 256), x.shape[1])
        strided_lanes_sick[grid](x, out, x.shape[0], x.shape[1], BLOCK=256)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        strided_lanes_healthy[(triton.cdiv(x.numel(), 2048),)](x, out, x.numel(), BLOCK=2048)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS)]
