# problem: matmul
# class: C: sys imported from another module
# purity: triton
# by: source
# says: enum.sys
import torch
import torch.nn as nn
import triton
import triton.language as tl

from enum import sys as machine

LOADED = machine.modules


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
