# problem: mean_of_centred
# class: an answer that is nothing beside its noise
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_of_centred(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + o, mask=o < n, other=0.0)
    centred = tl.where(o < n, x - tl.sum(x, 0) / n, 0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(centred, 0) / n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.zeros(x.shape[0], device=x.device)
        mean_of_centred[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
