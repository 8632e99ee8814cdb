# problem: exponential
# class: wrong in a narrow window of values
# says: relative error|beside their own size
import torch
import torch.nn as nn
import triton


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return torch.where((x > 0.700) & (x < 0.701), y * 1.01, y)
