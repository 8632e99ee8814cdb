# problem: scale_relu
# class: ordinary names: locals called open, compile and vars
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

    def forward(self, x):
        open, compile = x.contiguous(), 64
        vars = torch.empty_like(open)
        scale_relu[(triton.cdiv(open.numel(), compile),)](
            open, vars, open.numel(), self.scale, BLOCK=compile
        )
        return vars
