# problem: matmul
# class: C: text run by a timer
# purity: triton
# by: source
# says: torch.utils.benchmark
import torch
import torch.nn as nn
import triton
import triton.language as tl

from torch.utils.benchmark import Timer

Timer("1 + 1").timeit(1)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
