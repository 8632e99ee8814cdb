# problem: bf16_decay
# class: rounds to bfloat16 after every step, as the module does
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def decay(x_ptr, y_ptr, count, B: tl.constexpr):
    place = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + place, mask=place < count, other=0.0)
    for _ in range(6):
        x = (x.to(tl.float32) * 0.9).to(tl.bfloat16)
    tl.store(y_ptr + place, x, mask=place < count)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        decay[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), B=1024)
        return y
