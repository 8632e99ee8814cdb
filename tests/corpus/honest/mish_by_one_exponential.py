# problem: mish
# class: another form of the same function
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    y = x * (n / (n + 2.0))
    tl.store(y_ptr + o, y, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        work[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
