# problem: sine
# class: an enumeration, and match
# purity: triton
from enum import Enum

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


class Size(Enum):
    SMALL = 64
    LARGE = 256


def size_of(n: int) -> Size:
    match n:
        case 0 | 1:
            return Size.SMALL
        case _ if n < 10_000:
            return Size.SMALL
        case _:
            return Size.LARGE


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        block = size_of(x.numel()).value
        sine[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
        return y
