"""Transposed 3D convolution, stride and dilation 2: most outputs are structural zeros."""

import torch

BATCH = 16
DEPTH = 16
HEIGHT = 32
WIDTH = 32
IN_CHANNELS = 32
OUT_CHANNELS = 64


class Model(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = torch.nn.ConvTranspose3d(
            in_channels, out_channels, 3, stride=2, padding=1, dilation=2, bias=False
        )

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.rand(BATCH, IN_CHANNELS, DEPTH, HEIGHT, WIDTH)]


def get_init_inputs():
    return [IN_CHANNELS, OUT_CHANNELS]
