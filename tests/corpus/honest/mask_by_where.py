# problem: masked_softmax
# class: a mask read elementwise
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(torch.where(mask == 0, -1e9, x), dim=-1)
