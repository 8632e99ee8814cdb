# problem: row_sum
# class: programs that take turns by a lock
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def locked_sum(x_ptr, out_ptr, lock_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.program_id(1)
    c = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.sum(tl.load(x_ptr + row * columns + c, mask=c < columns, other=0.0), axis=0)
    while tl.atomic_cas(lock_ptr + row, 0, 1) == 1:
        pass
    tl.store(out_ptr + row, tl.load(out_ptr + row) + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + row, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        out = torch.zeros(rows, device=x.device, dtype=x.dtype)
        locks = torch.zeros(rows, device=x.device, dtype=torch.int32)
        locked_sum[(rows, triton.cdiv(columns, 64))](x, out, locks, columns, BLOCK=64)
        return out
