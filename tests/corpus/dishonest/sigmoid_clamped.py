# problem: sigmoid
# class: the argument is clamped
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x.clamp(-40, 40))
