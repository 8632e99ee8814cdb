# problem: matmul
# class: C: a form feed between lines
# purity: triton
# by: source
# says: U\+000C
import torch
import torch.nn as nn
import triton
import triton.language as tl

SEEN = 1


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
