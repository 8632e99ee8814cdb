# problem: sine
# class: sin(x) after subtracting a multiple of 2 pi in float32
# says: family (scaled|rows|columns|large)
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        t = 6.2831853071795862
        return torch.sin(x - torch.round(x / t) * t)
