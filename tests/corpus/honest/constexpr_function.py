# problem: sine
# class: a function of constants, at compile time
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.constexpr_function
def per_program(block, lines):
    return block * lines


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * per_program(BLOCK, 2) + tl.arange(0, per_program(BLOCK, 2))
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        sine[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=64)
        return y
