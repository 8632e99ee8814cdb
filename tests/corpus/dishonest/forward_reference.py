# problem: matmul
# class: C: a forward reference evaluated
# purity: triton
# by: source
# says: ForwardRef
import torch
import torch.nn as nn
import triton
import triton.language as tl

from typing import ForwardRef

WHAT = ForwardRef('1 + 1')


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
