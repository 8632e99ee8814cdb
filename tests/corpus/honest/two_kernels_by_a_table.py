# problem: softmax_rows
# class: several launches, named in a list
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tops(x_ptr, t_ptr, s_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * columns + o, mask=o < columns, other=float("-inf"))
    top = tl.max(x, 0)
    tl.store(t_ptr + row, top)
    tl.store(s_ptr + row, tl.sum(tl.exp(x - top), 0))


@triton.jit
def shares(x_ptr, t_ptr, s_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * columns + o, mask=o < columns, other=float("-inf"))
    y = tl.exp(x - tl.load(t_ptr + row)) / tl.load(s_ptr + row)
    tl.store(y_ptr + row * columns + o, y, mask=o < columns)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        columns = x.shape[-1]
        rows = x.numel() // columns
        y, top, total = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        for kernel, given in ((tops, (x, top, total)), (shares, (x, top, total, y))):
            kernel[(rows,)](*given, columns, BLOCK=triton.next_power_of_2(columns))
        return y
