# problem: layer_norm
# class: the variance as a difference of large numbers
# says: family (offset|rows|large|constant|columns)
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        m = x.mean(-1, keepdim=True)
        v = (x * x).mean(-1, keepdim=True) - m * m
        return (x - m) * torch.rsqrt(v + 1e-5) * self.norm.weight + self.norm.bias
