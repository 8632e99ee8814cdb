# problem: twice_over
# class: two outputs in one memory
# says: share memory
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x * 2
        return y, y
