# problem: unfold_windows
# class: an output whose elements share memory
# says: one another's memory
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone().unfold(1, 4, 1)
