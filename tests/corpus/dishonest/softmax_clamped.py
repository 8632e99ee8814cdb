# problem: softmax_rows
# class: softmax of clamped values
# says: family
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x.clamp(-20, 20), dim=-1)
