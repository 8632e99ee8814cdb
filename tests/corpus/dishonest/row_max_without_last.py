# problem: row_max
# class: last column is left out when it is largest by chance
# says: relative error|not finite
import torch
import torch.nn as nn
import triton


class ModelNew(nn.Module):
    def forward(self, x):
        return x[:, :-1].max(1).values
