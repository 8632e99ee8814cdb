# problem: sine
# class: device="cuda" in the text
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def apply(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(y_ptr + o, tl.sin(x), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape, device="cuda", dtype=x.dtype)
        apply[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
