import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0.0)


def get_inputs():
    return [torch.randn(6, 20)]
