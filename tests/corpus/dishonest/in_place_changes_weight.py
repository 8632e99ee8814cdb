# problem: in_place_affine
# class: a weight changes too
# says: changed weight|relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        x.mul_(self.weight).add_(1)
        self.weight.data.mul_(1.001)
        return x
