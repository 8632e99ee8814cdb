# problem: matmul
# class: C: getattr bound by partial
# purity: triton
# by: source
# says: getattr
import torch
import torch.nn as nn
import triton
import triton.language as tl

from functools import partial

HIDDEN = partial(getattr, torch)('_dispatch')


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
