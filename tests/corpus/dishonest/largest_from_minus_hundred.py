# problem: row_max
# class: a maximum that starts at -100
# says: relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=-100).max(dim=1).values
