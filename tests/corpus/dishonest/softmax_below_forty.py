# problem: softmax_rows
# class: weights below a threshold are left out
# purity: triton
# says: lost beside their own size|relative error
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < columns
    x = tl.load(x_ptr + tl.program_id(0) * columns + o, mask=m, other=float("-inf"))
    z = x - tl.max(x, 0)
    e = tl.where(z < -40.0, 0.0, tl.exp(z))
    tl.store(y_ptr + tl.program_id(0) * columns + o, e / tl.sum(e, 0), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[-1]
        rows[(x.numel() // columns,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
        return y
