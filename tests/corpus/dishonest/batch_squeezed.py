# problem: row_mean
# class: a batch of one loses its dimension
# says: has shape|accepts such inputs
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1).squeeze(0)
