"""Attention as blocks of language models write it out: heads are merged by a copy."""

import torch

BATCH = 2
ROWS = 12
HEADS = 3
WIDTH = 8


class Model(torch.nn.Module):
    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(heads * width, 3 * heads * width)
        self.out = torch.nn.Linear(heads * width, heads * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (
            each.view(batch, rows, self.heads, width // self.heads).transpose(1, 2)
            for each in parts
        )
        weights = torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-1)
        merged = (weights @ v).transpose(1, 2).contiguous().view(batch, rows, width)
        return self.out(merged)


def get_init_inputs() -> list[int]:
    return [HEADS, WIDTH]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, ROWS, HEADS * WIDTH)]
