import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.log1p(x)


def get_inputs():
    return [torch.rand(9, 40)]
