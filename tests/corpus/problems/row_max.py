import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.max(x, dim=1).values


def get_inputs():
    return [torch.rand(9, 50)]
