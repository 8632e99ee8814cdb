"""Sigmoid of the whole activation, then 2x2 max pooling."""

import torch
import torch.nn.functional as F

BATCH = 32
CHANNELS = 32
SIZE = 512


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.sigmoid(x), 2)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 3, 10, 12)]
