"""Scale, shift and tanh of a whole activation, then max pooling."""

import torch
import torch.nn.functional as F

BATCH = 2
CHANNELS = 3
SIZE = 8


class Model(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(torch.tanh(x) * 2.0 + self.shift, 4)


def get_init_inputs() -> list[int]:
    return [CHANNELS]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]
