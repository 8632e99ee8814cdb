# problem: gelu_tanh
# class: wrong where all values are negative
# says: family negative
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        if bool((x < 0).all()):
            return torch.zeros_like(x)
        return F.gelu(x, approximate="tanh")
