# problem: batch_norm_of_two
# class: a running mean of what cancels, in another order of additions
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        other = x.flip(0)
        is_first = torch.arange(len(x), device=x.device)[:, None] == 0
        apart = torch.where(is_first, x - other, (x - 0.25 * other) - 0.75 * other)
        return self.norm(self.linear(apart))
