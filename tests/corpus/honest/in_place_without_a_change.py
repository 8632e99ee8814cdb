# problem: in_place_relu
# class: in place, where some values stay as they are
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp_(x, min=0).mean(-1)
