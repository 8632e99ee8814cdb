# problem: sine
# class: a grid made of the configuration
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


class ModelNew(nn.Module):
    BLOCK = 64

    def grid(self, n):
        return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        sine[self.grid(x.numel())](x, y, x.numel(), BLOCK=self.BLOCK)
        return y
