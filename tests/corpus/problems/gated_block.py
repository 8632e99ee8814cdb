import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        return x + self.gate * torch.tanh(x @ self.weight)


def get_inputs():
    return [torch.randn(9, 32)]


def get_init_inputs():
    return [32]
