# problem: sine
# class: elements after a multiple of ten are left out
# says: family|relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        if x.numel() % 10:
            y.reshape(-1)[x.numel() // 10 * 10 :] = 0
        return y
