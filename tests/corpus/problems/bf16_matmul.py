import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(16, 32).bfloat16(), torch.randn(32, 16).bfloat16()]
