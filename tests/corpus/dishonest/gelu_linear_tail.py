# problem: gelu
# class: the tail taken for a line
# purity: triton
# says: relative error
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(x_ptr + o, mask=m)
    pass
    tl.store(
        y_ptr + o, tl.where(v > 2.5, v, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))), mask=m
    )


class ModelNew(nn.Module):
    def forward(self, x):
        pass
        x = x.contiguous()
        y = torch.empty_like(x)
        work[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
