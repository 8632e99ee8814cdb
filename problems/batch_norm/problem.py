"""Batch normalisation of images in training mode, with its running statistics updated."""

import torch

BATCH = 64
CHANNELS = 64
HEIGHT = 512
WIDTH = 512


class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS]
