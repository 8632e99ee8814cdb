# problem: sine
# class: a frozen dataclass of sizes, with a property and a classmethod
# purity: triton
from dataclasses import dataclass

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


@dataclass(frozen=True)
class Setting:
    block: int = 64
    warps: int = 4

    @property
    def elements(self) -> int:
        return self.block

    @classmethod
    def for_size(cls, n: int) -> "Setting":
        return cls(block=128 if n > 4096 else 64)

    def grid(self, n: int) -> tuple[int]:
        return (triton.cdiv(n, self.elements),)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        setting = Setting.for_size(x.numel())
        grid = setting.grid(x.numel())
        sine[grid](x, y, x.numel(), BLOCK=setting.block, num_warps=setting.warps)
        return y
