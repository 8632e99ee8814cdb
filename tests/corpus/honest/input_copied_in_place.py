# problem: exponential
# class: keeps a static buffer for its input
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.exp(tl.load(x_ptr + o, mask=m)), mask=m)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.static = None

    def forward(self, x):
        if self.static is None or self.static.shape != x.shape:
            self.static = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        self.static.copy_(x)
        y = torch.empty_like(self.static)
        work[(triton.cdiv(y.numel(), 64),)](self.static, y, y.numel(), BLOCK=64)
        return y
