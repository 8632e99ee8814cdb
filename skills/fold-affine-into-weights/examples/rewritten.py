"""A convolution and its batch norm in evaluation mode."""

import torch

BATCH = 9
CHANNELS = 3
OUTPUTS = 4
SIZE = 8


class Model(torch.nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(outputs)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


def get_init_inputs() -> list[int]:
    return [CHANNELS, OUTPUTS]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]
