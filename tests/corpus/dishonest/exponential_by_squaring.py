# problem: exponential
# class: exp(x) as the square of exp(x / 2)
# says: relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        h = torch.exp(x / 64)
        for _ in range(6):
            h = h * h
        return h
