# problem: matmul
# class: D: NumPy computes, the kernel copies
# purity: triton
# says: Tensor\.numpy|only copy
# says on a gpu: can't convert cuda
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def carry(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, a, b):
        done = torch.from_numpy(a.numpy() @ b.numpy())
        out = torch.empty_like(done)
        carry[(triton.cdiv(out.numel(), 64),)](done, out, out.numel(), BLOCK=64)
        return out
