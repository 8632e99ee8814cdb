# problem: unfold_windows
# class: windows as an index
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        i = torch.arange(x.shape[1] - 3, device=x.device)[:, None] + torch.arange(
            4, device=x.device
        )
        return x[:, i]
