# problem: row_argmax
# class: argmax of rounded values
# says: relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.argmax(x.half().float(), dim=1)
