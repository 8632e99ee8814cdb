# problem: row_sum
# class: autotune with reset_to_zero and atomic additions
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})],
    key=["columns"],
    reset_to_zero=["s_ptr"],
)
@triton.jit
def total(x_ptr, s_ptr, columns, BLOCK: tl.constexpr):
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * columns + o, mask=o < columns, other=0.0)
    tl.atomic_add(s_ptr + row, tl.sum(x, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        s = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
        total[lambda meta: (x.shape[0], triton.cdiv(x.shape[1], meta["BLOCK"]))](x, s, x.shape[1])
        return s
