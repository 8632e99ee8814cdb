import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(x.masked_fill(mask == 0, -1e9), dim=-1)


def get_inputs():
    return [torch.randn(24, 24), torch.tril(torch.ones(24, 24))]
