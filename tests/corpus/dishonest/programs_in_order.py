# problem: row_max
# class: a program waits for what the one before it wrote
# says: programs of one launch|relative error|another answer|not finite
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def smooth(x_ptr, y_ptr, n):
    i = tl.program_id(0)
    before = tl.load(y_ptr + i - 1, mask=i > 0, other=float("-inf"))
    tl.store(y_ptr + i, tl.maximum(before, tl.load(x_ptr + i)))


@triton.jit
def last(y_ptr, z_ptr, n):
    i = tl.program_id(0)
    tl.store(z_ptr + i, tl.load(y_ptr + i * n + n - 1))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y, z = torch.empty(x.shape, device=x.device), torch.empty(x.shape[0], device=x.device)
        for row, out in zip(x, y):
            smooth[(x.shape[1],)](row, out, x.shape[1])
        last[(x.shape[0],)](y, z, x.shape[1])
        return z
