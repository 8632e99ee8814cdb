# problem: axpby
# class: the second number is taken as it was
# says: argument 3
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y, alpha, beta):
        return alpha * x + 2.0 * y
