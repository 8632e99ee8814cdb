"""The mean over all pixels of a strided transposed convolution, cropped at its borders."""

import torch

BATCH = 2
CHANNELS = 3
OUTPUTS = 4
SIZE = 8


class Model(torch.nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = torch.nn.ConvTranspose2d(
            channels, outputs, 3, stride=2, padding=1, output_padding=1
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.conv(x) * 0.5).mean(dim=(2, 3))


def get_init_inputs() -> list[int]:
    return [CHANNELS, OUTPUTS]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]
