# problem: row_mean
# class: a workspace is kept, results are not
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.space = None

    def forward(self, x):
        if self.space is None or self.space.shape != x.shape:
            self.space = torch.empty(x.shape, device=x.device)
        self.space.copy_(x)
        return self.space.mean(dim=-1)
