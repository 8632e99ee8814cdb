# problem: exponential
# class: NaN where infinity is right
# says: not finite
import torch
import torch.nn as nn
import triton


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return torch.where(torch.isinf(y), torch.full_like(y, float('nan')), y)
