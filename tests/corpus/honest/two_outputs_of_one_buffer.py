# problem: two_scales
# class: two outputs beside each other in one buffer
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        both = torch.empty((2, *x.shape), device=x.device)
        torch.mul(x, 2, out=both[0])
        torch.mul(x, 3, out=both[1])
        return both[0], both[1]
