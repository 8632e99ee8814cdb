"""Transposed 2D convolution, stride 5 and dilation 2: structural zeros between taps."""

import torch

BATCH = 16
HEIGHT = 64
WIDTH = 128
IN_CHANNELS = 32
OUT_CHANNELS = 64


class Model(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = torch.nn.ConvTranspose2d(
            in_channels, out_channels, 3, stride=5, padding=1, dilation=2, bias=False
        )

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.rand(BATCH, IN_CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
