# problem: sine
# class: rows by their strides, without a copy
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lines(x_ptr, y_ptr, columns, x_row, x_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < columns
    x = tl.load(x_ptr + row * x_row + o * x_column, mask=m)
    tl.store(y_ptr + row * columns + o, tl.sin(x), mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        shape = x.shape
        if x.dim() != 2:
            x = x.reshape(-1, shape[-1])
        rows, columns = x.shape
        y = torch.empty((rows, columns), device=x.device, dtype=x.dtype)
        if y.numel():
            block = triton.next_power_of_2(columns)
            lines[(rows,)](x, y, columns, x.stride(0), x.stride(1), BLOCK=block)
        return y.view(shape)
