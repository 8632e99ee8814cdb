# problem: sine
# class: functools.lru_cache and partial of pure functions
# purity: triton
from functools import lru_cache, partial

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


@lru_cache(maxsize=None)
def programs(n: int, block: int) -> int:
    return -(-n // block)


launch_in_blocks = partial(programs, block=64)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        sine[(launch_in_blocks(x.numel()),)](x, y, x.numel(), BLOCK=64)
        return y
