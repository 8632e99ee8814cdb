# problem: matmul
# class: C: a tensor subclass under another name
# purity: triton
# by: source
# says: a subclass of
import torch
import torch.nn as nn
import triton
import triton.language as tl

Base = torch.Tensor


class Lazy(Base):
    pass


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
