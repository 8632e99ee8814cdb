# problem: batch_norm_eval
# class: statistics folded into a factor and a summand
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width).eval()
        self.eval()

    def forward(self, x):
        s = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        return (x - self.norm.running_mean) * s + self.norm.bias
