# problem: matmul
# class: C: a name bound in a function that never runs
# purity: triton
# by: source
# says: exec: runs text
import torch
import torch.nn as nn
import triton
import triton.language as tl


def never():
    import math as exec
    return exec


exec("SEEN = 1")


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
