# problem: sine
# class: typing: NamedTuple, Protocol, Final
# purity: triton
from typing import Final, NamedTuple, Protocol

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)

BLOCK: Final = 64


class Launch(NamedTuple):
    programs: int
    block: int = BLOCK


class Plans(Protocol):
    def __call__(self, n: int) -> Launch: ...


def plan(n: int) -> Launch:
    return Launch(triton.cdiv(n, BLOCK))


class ModelNew(nn.Module):
    plan: Plans = staticmethod(plan)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        programs, block = self.plan(x.numel())
        sine[(programs,)](x, y, x.numel(), BLOCK=block)
        return y
