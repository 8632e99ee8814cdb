import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / 4)

    def forward(self, x, h):
        return torch.tanh(x @ self.weight + h)


def get_inputs():
    return [torch.randn(8, 16), torch.zeros(8, 16)]


def get_init_inputs():
    return [16]
