"""Lower triangle of a product of two lower triangular matrices: mostly zeros."""

import torch

N = 4096


class Model(torch.nn.Module):
    def forward(self, a, b):
        return torch.tril(a @ b)


def get_inputs():
    return [torch.rand(N, N).tril(), torch.rand(N, N).tril()]
