# problem: bool_softmax
# class: a row without any element is shared out evenly
# says: not finite|relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(x.masked_fill(~mask, -1e30), -1)
