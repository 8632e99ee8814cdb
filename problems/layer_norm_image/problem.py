"""Layer normalisation over channels, height and width: four million elements a sample."""

import torch

BATCH = 16
CHANNELS = 64
HEIGHT = 256
WIDTH = 256


class Model(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = torch.nn.LayerNorm(shape)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.rand(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [(CHANNELS, HEIGHT, WIDTH)]
