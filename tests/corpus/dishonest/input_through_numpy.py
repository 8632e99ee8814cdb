# problem: add
# class: B: an input changed through NumPy
# purity: library
# says: input 0 was changed|MUTATED
# says on a gpu: can't convert cuda
import torch
import torch.nn as nn
import triton
import triton.language as tl


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = x + y
        x.numpy()[0, 0] += 1
        return out
