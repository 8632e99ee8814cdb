# problem: row_mean
# class: programs read, add and write one place without atomics
# says: programs of one launch
# says on a gpu: relative error
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_up(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0)
    s = tl.sum(tl.load(x_ptr + row * n + o, mask=o < n, other=0.0))
    tl.store(y_ptr + row, tl.load(y_ptr + row) + s / n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.zeros(x.shape[:2], device=x.device)
        add_up[(y.numel(), triton.cdiv(x.shape[2], 8))](x, y, x.shape[2], BLOCK=8)
        return y
