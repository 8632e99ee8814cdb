# problem: gelu
# class: the smallest inputs count as zero
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.nn.functional.gelu(x)
        return torch.where(x.abs() < 1e-30, torch.zeros_like(y), y)
