# problem: share_of_row
# class: small shares are zero
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x / x.abs().sum(-1, keepdim=True)
        return torch.where(y.abs() < 1e-7, torch.zeros_like(y), y)
