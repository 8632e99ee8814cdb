# problem: batch_norm_of_two
# class: a running mean of what cancels, off by a thousandth of what it cancels from
# says: buffer norm.running_mean is not what the module leaves there
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        y = self.linear(x - x.flip(0))
        answer = self.norm(y)
        self.norm.running_mean.add_(1e-4 * y.std(0))
        return answer
