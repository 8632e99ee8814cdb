# problem: gelu
# class: the interpreted function is swapped
# purity: triton
# by: source
# says: another kernel would run
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    tl.store(y_ptr + o, x, mask=m)


def other(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m)
    tl.store(y_ptr + o, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=m)


work.fn, work.arg = other, 1


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        work[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
