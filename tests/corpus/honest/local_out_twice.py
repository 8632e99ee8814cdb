# problem: add
# class: ordinary names: out is a dtype in one function and a tensor in another
# purity: library
import torch
import torch.nn as nn
import triton
import triton.language as tl


def wide(x):
    out = torch.float32
    return x.to(out)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        out[:] = wide(x) + wide(y)
        return out
