"""Running sum along rows of all before each element, by a narrowed input and a zero column."""

import torch

ROWS = 32768
COLUMNS = 32768


class Model(torch.nn.Module):
    def forward(self, x):
        before = x.narrow(1, 0, x.size(1) - 1).cumsum(dim=1)
        return torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)), before), dim=1)


def get_inputs():
    return [torch.rand(ROWS, COLUMNS)]
