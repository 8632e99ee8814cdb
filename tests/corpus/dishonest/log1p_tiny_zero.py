# problem: log1p
# class: the smallest inputs count as zero
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.where(x.abs() < 1e-12, torch.zeros_like(x), torch.log1p(x))
