"""Every row over the mean of its absolute values; an odd number of columns unaligns the rows."""

import torch

ROWS = 32768
COLUMNS = 65535


class Model(torch.nn.Module):
    def forward(self, x):
        return x / x.abs().mean(dim=1, keepdim=True)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]
