# problem: matmul
# class: C: an attribute read by a match pattern
# purity: triton
# by: source
# says: __globals__
import torch
import torch.nn as nn
import triton
import triton.language as tl


def reach(f):
    match f:
        case object(__globals__=names):
            return names


NAMES = reach(nn.Module.forward)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
