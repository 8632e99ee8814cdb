# problem: matmul
# class: C: a tensor subclass made by type()
# purity: triton
# by: source
# says: type with more than one
import torch
import torch.nn as nn
import triton
import triton.language as tl

Lazy = type("Lazy", (torch.Tensor,), {})


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
