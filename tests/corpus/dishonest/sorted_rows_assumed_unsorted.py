# problem: row_max
# class: wrong where a row rises
# says: family (rows|columns)
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.max(dim=1).values
        rises = (x[:, 1:] >= x[:, :-1]).all(1) & (x[:, 1:] > x[:, :-1]).any(1)
        return torch.where(rises, x[:, 0], y)
