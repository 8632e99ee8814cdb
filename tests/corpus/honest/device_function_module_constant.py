# problem: gelu
# class: a device function and a constant of the module
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))


@triton.jit
def each(x_ptr, y_ptr, n, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, ACTIVATION(tl.load(x_ptr + o, mask=m)), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        each[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64, ACTIVATION=gelu)
        return y
