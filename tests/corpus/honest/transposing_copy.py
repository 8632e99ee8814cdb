# problem: transpose
# class: purity: a module that only moves values, by a kernel that only moves them
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def transpose(x_ptr, y_ptr, rows, columns, stride_row, stride_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < columns
    v = tl.load(x_ptr + row * stride_row + o * stride_column, mask=m)
    tl.store(y_ptr + o * rows + row, v, mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty(columns, rows, dtype=x.dtype, device=x.device)
        block = triton.next_power_of_2(columns)
        transpose[(rows,)](x, y, rows, columns, x.stride(0), x.stride(1), BLOCK=block)
        return y
