# problem: matmul
# class: C: getattr handed to map
# purity: triton
# by: source
# says: getattr
import torch
import torch.nn as nn
import triton
import triton.language as tl

HIDDEN = list(map(getattr, [torch], ['_' + 'C']))


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
