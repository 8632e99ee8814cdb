# problem: tanh
# class: one window of magnitudes is another function
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        w = (x.abs() > 1e-9) & (x.abs() < 1e-8)
        return torch.where(w, 2 * x, torch.tanh(x))
