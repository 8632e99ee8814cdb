# problem: scale_relu
# class: ordinary names: class attributes and methods called open and compile
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


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
        self.compile = 64

    def open(self, x):
        return x.contiguous()

    def forward(self, x):
        x = self.open(x)
        y = torch.empty_like(x)
        scale_relu[(triton.cdiv(x.numel(), self.compile),)](
            x, y, x.numel(), self.scale, BLOCK=self.compile
        )
        return y
