# problem: integer_sum
# class: integers summed as integers
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_up(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + o, mask=o < n, other=0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(x, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        add_up[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
