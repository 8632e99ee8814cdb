# problem: softmax_rows
# class: softmax without taking the maximum off
# says: family
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)
