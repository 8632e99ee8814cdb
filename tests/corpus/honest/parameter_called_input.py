# problem: scale_relu
# class: ordinary names: a parameter called input
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

    def forward(self, input):
        input = input.contiguous()
        out = torch.empty_like(input)
        scale_relu[(triton.cdiv(input.numel(), 64),)](
            input, out, input.numel(), self.scale, BLOCK=64
        )
        return out
