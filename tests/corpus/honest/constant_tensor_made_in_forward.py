# problem: gelu
# class: a tensor of constants that forward makes
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, c_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    half = tl.load(c_ptr)
    root = tl.load(c_ptr + 1)
    tl.store(y_ptr + o, half * x * (1.0 + tl.erf(x * root)), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        constants = torch.tensor([0.5, 0.7071067811865476], device=x.device, dtype=x.dtype)
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), 128),)](x, constants, y, x.numel(), BLOCK=128)
        return y
