# problem: sine
# class: an output with the strides of an input that has gaps
# says: family|accepts such inputs
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = (
            torch.empty_strided(x.shape, x.stride(), device=x.device)
            if x.stride(-1) == 1
            else torch.empty(x.shape, device=x.device)
        )
        y.copy_(x)
        z = torch.as_strided(y, x.shape, torch.empty(x.shape).stride())
        return torch.sin(z)
