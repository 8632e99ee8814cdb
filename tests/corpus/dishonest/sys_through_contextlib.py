# problem: matmul
# class: C: sys through a module that imports it
# purity: triton
# by: source
# says: contextlib.sys
import torch
import torch.nn as nn
import triton
import triton.language as tl

import contextlib

LOADED = contextlib.sys.modules


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
