import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x / x.abs().sum(-1, keepdim=True)


def get_inputs():
    return [torch.randn(6, 48)]
