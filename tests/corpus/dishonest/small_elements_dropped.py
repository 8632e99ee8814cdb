# problem: exponential
# class: elements that are small beside the largest are zero
# says: beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.exp(x)
        return torch.where(y < 1e-7 * y.amax(), torch.zeros_like(y), y)
