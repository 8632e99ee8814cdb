# problem: row_sum
# class: launches: a program that waits for what no other does
# purity: triton
# says: wait for each other
# says on a gpu: no answer within
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_row(x_ptr, y_ptr, arrived, columns, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + row * columns + place, mask=place < columns, other=0.0), axis=0)
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < rows + 1:
        pass
    tl.store(y_ptr + row, total)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        arrived = torch.zeros(1, dtype=torch.int32, device=x.device)
        block = triton.next_power_of_2(columns)
        add_row[(rows,)](x, y, arrived, columns, rows, BLOCK=block)
        return y
