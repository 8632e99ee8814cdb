# problem: matmul
# class: C: a class hierarchy read by a match pattern
# purity: triton
# by: source
# says: __mro__
import torch
import torch.nn as nn
import triton
import triton.language as tl


def reach(f):
    match type(f):
        case object(__mro__=bases):
            return bases


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
