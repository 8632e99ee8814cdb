# problem: exponential
# class: the far end of exp is cut off
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return torch.where(x < -80, torch.zeros_like(y), y)
