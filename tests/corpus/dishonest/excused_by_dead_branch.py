# problem: matmul
# class: C: a name bound in a branch that never runs
# purity: triton
# by: source
# says: eval: runs text
import torch
import torch.nn as nn
import triton
import triton.language as tl

if torch.__version__ == "0":
    eval = abs

SEEN = eval("1 + 1")


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
