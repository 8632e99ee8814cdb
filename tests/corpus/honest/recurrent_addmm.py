# problem: recurrent_step
# class: one product with a summand
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x, h):
        return torch.tanh(torch.addmm(h, x, self.weight))
