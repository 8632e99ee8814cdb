# problem: gelu_tanh
# class: wrong where the largest value lies between two families
# says: family
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        m = x.abs().amax()
        if 7 < m < 2000:
            return x * 0.999
        return F.gelu(x, approximate="tanh")
