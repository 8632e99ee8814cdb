# problem: matmul
# class: D: the kernel multiplies a library product by one
# purity: triton
# says: aten\.mm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def times(x_ptr, y_ptr, n, one, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=m) * one, mask=m)


class ModelNew(nn.Module):
    def forward(self, a, b):
        done = torch.matmul(a, b)
        out = torch.empty_like(done)
        times[(triton.cdiv(out.numel(), 64),)](done, out, out.numel(), 1.0, BLOCK=64)
        return out
