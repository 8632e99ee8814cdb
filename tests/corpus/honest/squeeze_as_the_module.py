# problem: squeeze_mean
# class: a dimension of one goes as in the module
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.mean(x, 1).squeeze()
