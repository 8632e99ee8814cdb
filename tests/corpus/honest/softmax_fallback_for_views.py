# problem: softmax_rows
# class: steps aside for what it was not written for
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * stride + o, mask=o < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + tl.program_id(0) * n + o, e / tl.sum(e, axis=0), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        if not x.is_contiguous():
            return torch.softmax(x, -1)
        y = torch.empty(x.shape, device=x.device)
        rows[(x.shape[0],)](x, y, x.stride(0), x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
