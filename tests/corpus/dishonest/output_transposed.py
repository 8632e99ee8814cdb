# problem: softmax_rows
# class: an output with other strides
# says: strides
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1).t().contiguous().t()
