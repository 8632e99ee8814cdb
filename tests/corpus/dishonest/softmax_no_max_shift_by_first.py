# problem: softmax_rows
# class: shifted by the first element instead of the largest
# purity: triton
# says: not finite|relative error
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < columns
    p = x_ptr + r * columns + c
    v = tl.load(p, mask=m, other=float("-inf"))
    first = tl.sum(tl.where(c == 0, v, 0.0), 0)
    e = tl.where(m, tl.exp(v - first), 0.0)
    tl.store(y_ptr + r * columns + c, e / tl.sum(e, 0), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        work[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
