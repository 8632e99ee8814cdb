"""Rotary embedding by slicing, negating, concatenating and two products: about five elementwise
kernels.
"""

import torch

BATCH = 8
LENGTH = 4096
HEADS = 32
DIM = 128


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rotated = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        cos = torch.cat([cos, cos], dim=-1)[:, None, :]
        sin = torch.cat([sin, sin], dim=-1)[:, None, :]
        return x * cos + rotated * sin


def make_inputs(batch: int, length: int, heads: int, dim: int) -> list[torch.Tensor]:
    angle = torch.rand(length, dim // 2) * 6.28
    return [torch.randn(batch, length, heads, dim), angle.cos(), angle.sin()]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(BATCH, LENGTH, HEADS, DIM)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(2, 5, 4, 16)
