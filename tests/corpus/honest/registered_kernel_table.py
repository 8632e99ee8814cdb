# problem: gelu
# class: decorators and a registry of its own
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


KERNELS = {}


def registered(name):
    def keep(kernel):
        KERNELS[name] = kernel
        return kernel

    return keep


@registered("gelu")
@triton.jit
def each(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    tl.store(y_ptr + o, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        KERNELS["gelu"][(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
