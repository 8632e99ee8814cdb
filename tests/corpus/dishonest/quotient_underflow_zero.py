# problem: quotient
# class: small quotients are zero
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = a / b
        return torch.where(y.abs() < 1e-28, torch.zeros_like(y), y)
