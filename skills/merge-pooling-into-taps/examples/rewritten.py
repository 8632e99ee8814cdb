"""A transposed convolution with stride 2, averaged over windows of 2 x 2."""

import torch
import torch.nn.functional as F

BATCH = 2
CHANNELS = 3
OUTPUTS = 4
SIZE = 8


class Model(torch.nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = torch.nn.ConvTranspose2d(channels, outputs, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(self.conv(x), 2)


def get_init_inputs() -> list[int]:
    return [CHANNELS, OUTPUTS]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]
