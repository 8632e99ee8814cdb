# problem: in_place_affine
# class: in place, as the module
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x.copy_(torch.addcmul(torch.ones_like(x), x, self.weight))
