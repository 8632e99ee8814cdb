# problem: row_max
# class: a maximum that starts at minus infinity
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def join(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def largest(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + o, mask=o < n, other=-float("inf"))
    tl.store(y_ptr + tl.program_id(0), tl.reduce(x, 0, join))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device)
        largest[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
