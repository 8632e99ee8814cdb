# problem: matmul
# class: C: a name bound by an expression after its use
# purity: triton
# by: source
# says: compile: runs text
import torch
import torch.nn as nn
import triton
import triton.language as tl

_ = [compile("1", "", "eval") and (compile := None) for _ in [0]]


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
