# problem: scale_relu
# class: standard modules: functools, typing, dataclasses
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, Optional


@dataclass(frozen=True)
class Setting:
    block: int = 64


class Size(NamedTuple):
    count: int
    block: int


@lru_cache(maxsize=None)
def blocks(size: Size) -> int:
    return -(-size.count // size.block)


best: Optional[Setting] = Setting()
grid_of = partial(Size, block=best.block)



@triton.jit
def scale_relu(x_ptr, y_ptr, n, scale, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(x_ptr + o, mask=m) * scale
    tl.store(y_ptr + o, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=m)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        scale_relu[(blocks(grid_of(x.numel())),)](x, y, x.numel(), self.scale, BLOCK=best.block)
        return y
