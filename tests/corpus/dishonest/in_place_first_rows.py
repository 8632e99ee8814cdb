# problem: in_place_affine
# class: a longer input is changed in part
# says: family|relative
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        x[:6].mul_(self.weight).add_(1)
        return x
