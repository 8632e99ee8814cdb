# problem: matmul
# class: C: an operator library
# purity: triton
# by: source
# says: Library
import torch
import torch.nn as nn
import triton
import triton.language as tl

from torch.library import Library

LIB = Library("mine", "DEF")


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
