# problem: integer_sum
# class: integers are summed in float32
# says: large integers
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.float().sum(dim=1).long()
