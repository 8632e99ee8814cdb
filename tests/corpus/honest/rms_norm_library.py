# problem: rms_norm
# class: the library's operators in another order
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * (self.weight * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))
