# problem: row_sum
# class: purity: one kernel gathers, another computes
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gather(x_ptr, y_ptr, columns, stride_row, stride_column, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    m = o < columns
    v = tl.load(x_ptr + tl.program_id(0) * stride_row + o * stride_column, mask=m)
    tl.store(y_ptr + tl.program_id(0) * columns + o, v, mask=m)


@triton.jit
def total(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + tl.program_id(0) * columns + o, mask=o < columns, other=0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(v, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        dense = torch.empty(rows, columns, device=x.device)
        y = torch.empty(rows, device=x.device)
        block = triton.next_power_of_2(columns)
        gather[(rows,)](x, dense, columns, x.stride(0), x.stride(1), BLOCK=block)
        total[(rows,)](dense, y, columns, BLOCK=block)
        return y
