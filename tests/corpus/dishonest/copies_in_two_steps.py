# problem: gelu
# class: D: two kernels that copy what the library computed
# purity: triton
# says: aten\.gelu|only copy
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
    def forward(self, x):
        done = nn.functional.gelu(x.contiguous())
        half, out = torch.empty_like(done), torch.empty_like(done)
        n = out.numel()
        carry[(triton.cdiv(n, 64),)](done, half, n, BLOCK=64)
        carry[(triton.cdiv(n, 64),)](half, out, n, BLOCK=64)
        return out
