# problem: sine
# class: formats texts, asserts, and says what it cannot do
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
    def extra_repr(self) -> str:
        return "block={}, kernel={name!r}".format(64, name="sine")

    def forward(self, x):
        if not x.is_floating_point():
            raise TypeError(f"floating numbers are wanted, not {x.dtype}: {self.extra_repr()}")
        x = x.contiguous()
        assert x.is_contiguous(), "{:>10}".format("rows")
        y = torch.empty_like(x)
        sine[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return y
