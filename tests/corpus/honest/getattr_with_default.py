# problem: scale_relu
# class: reflection: getattr and hasattr with a name written out
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
        self.block = getattr(self, "wanted", 64)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        block = self.block if hasattr(self, "block") else 32
        scale_relu[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), self.scale, BLOCK=block)
        return y
