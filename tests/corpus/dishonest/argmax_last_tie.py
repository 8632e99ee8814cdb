# problem: row_argmax
# class: the last of equal ones
# purity: triton
# says: relative error
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
    top = tl.max(v, 0)
    tl.store(y_ptr + r, tl.max(tl.where(m & (v == top), c, -1), 0).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], device=x.device, dtype=torch.int64)
        work[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
