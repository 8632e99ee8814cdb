# problem: row_sum
# class: a lock that programs wait for
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_parts(x_ptr, y_ptr, locks, columns, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    place = part * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x_ptr + row * columns + place, mask=place < columns, other=0.0), axis=0)
    # in the order of the parts, so that the sum is the same at every call
    while tl.atomic_cas(locks + row, part, -1, sem="acquire") != part:
        pass
    tl.debug_barrier()
    so_far = tl.load(y_ptr + row, volatile=True)
    tl.store(y_ptr + row, so_far + total)
    tl.debug_barrier()
    tl.atomic_xchg(locks + row, part + 1, sem="release")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.zeros(rows, device=x.device, dtype=x.dtype)
        locks = torch.zeros(rows, dtype=torch.int32, device=x.device)
        add_parts[(rows, triton.cdiv(columns, 32))](x, y, locks, columns, BLOCK=32)
        return y
