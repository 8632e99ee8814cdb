# problem: row_argmax
# class: the library's own
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.argmax(1)
