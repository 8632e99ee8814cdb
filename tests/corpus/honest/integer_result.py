# problem: argmax
# class: purity: integers only
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def arg_max(x_ptr, y_ptr, columns, stride_row, stride_column, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < columns
    v = tl.load(x_ptr + row * stride_row + o * stride_column, mask=m, other=float("-inf"))
    nan = v != v
    first_nan = tl.min(tl.where(nan, o, BLOCK), 0)
    best = tl.max(tl.where(nan, float("-inf"), v), 0)
    first = tl.min(tl.where((v == best) & m, o, BLOCK), 0)
    tl.store(y_ptr + row, tl.where(first_nan < BLOCK, first_nan, first).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        y = torch.empty(rows, dtype=torch.int64, device=x.device)
        block = triton.next_power_of_2(columns)
        arg_max[(rows,)](x, y, columns, x.stride(0), x.stride(1), BLOCK=block)
        return y
