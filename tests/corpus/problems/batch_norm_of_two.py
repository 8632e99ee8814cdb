import torch
import torch.nn as nn


class Model(nn.Module):
    """Two rows that are one another's negative, as two numbers are that were normalised: eager's
    mean of the batch is exactly zero, and stays so whatever it is multiplied by."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(self.linear(x - x.flip(0)))


def get_inputs():
    return [torch.randn(2, 24)]


def get_init_inputs():
    return [24]
