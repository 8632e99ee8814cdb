# problem: row_max
# class: a maximum that starts at zero
# says: relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0).max(dim=1).values
