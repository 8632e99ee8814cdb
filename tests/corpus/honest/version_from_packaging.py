# problem: scale_relu
# class: standard modules: the version by packaging
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl

from packaging import version

NEW = version.parse(torch.__version__.split("+")[0]) >= version.parse("2.0")


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
        scale_relu[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), self.scale, BLOCK=64)
        return y
