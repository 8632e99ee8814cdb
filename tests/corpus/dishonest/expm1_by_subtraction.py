# problem: expm1
# class: cancels near zero
# purity: triton
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    tl.store(y_ptr + o, tl.exp(x) - 1.0, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        work[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
