# problem: exponential
# class: exp(x) as 2 to the x log2(e)
# says: relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp2(x * 1.4426950408889634)
