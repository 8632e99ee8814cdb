# problem: in_place_affine
# class: strides of an input are ignored
# says: family|accepts such|relative
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        flat = torch.as_strided(x, (x.numel(),), (1,))
        w = self.weight.repeat(x.shape[0])
        flat.mul_(w).add_(1)
        return x
