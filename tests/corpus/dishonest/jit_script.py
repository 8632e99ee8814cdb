# problem: softmax_rows
# class: library through TorchScript
# purity: triton
# by: source
# says: TorchScript
import torch
import torch.nn as nn
import triton


@torch.jit.script
def soft(x):
    return torch.softmax(x, -1)


class ModelNew(nn.Module):
    def forward(self, x):
        return soft(x)
