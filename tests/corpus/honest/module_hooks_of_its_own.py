# problem: linear
# class: state: hooks of its own modules
# purity: library
import torch
import torch.nn as nn
import triton
import triton.language as tl


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 12)
        self.linear.register_forward_hook(lambda module, args, result: result)

    def forward(self, x):
        return self.linear(x)
