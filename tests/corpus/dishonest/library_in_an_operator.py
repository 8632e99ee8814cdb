# problem: matmul
# class: D: a library product within an operator of the file's own
# purity: triton
# says: aten\.mm
import torch
import torch.nn as nn
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def carry(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=m) * 1.0, mask=m)


@triton_op("corpus_product::product", mutates_args={})
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    done = torch.mm(a, b)
    out = torch.empty_like(done)
    wrap_triton(carry)[(triton.cdiv(out.numel(), 64),)](done, out, out.numel(), BLOCK=64)
    return out


class ModelNew(nn.Module):
    def forward(self, a, b):
        return product(a, b)
