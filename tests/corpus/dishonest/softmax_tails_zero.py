# problem: softmax_rows
# class: the far ends of a softmax are zero
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, dim=-1)
        return torch.where(y < 1e-6, torch.zeros_like(y), y)
