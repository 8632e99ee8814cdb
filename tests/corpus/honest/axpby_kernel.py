# problem: axpby
# class: numbers as arguments of the kernel
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def axpby(x_ptr, y_ptr, z_ptr, alpha, beta, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + o, mask=o < n), tl.load(y_ptr + o, mask=o < n)
    tl.store(z_ptr + o, alpha * x + beta * y, mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, y, alpha, beta):
        x, y = x.contiguous(), y.contiguous()
        z = torch.empty_like(x)
        axpby[(triton.cdiv(x.numel(), 64),)](x, y, z, alpha, beta, x.numel(), BLOCK=64)
        return z
