# problem: sine
# class: asks the device's capability and guards it
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def apply(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(y_ptr + o, tl.sin(x), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        assert x.is_cuda
        block = 128 if torch.cuda.get_device_capability(x.device)[0] >= 9 else 64
        x = x.contiguous()
        y = torch.empty_like(x)
        with torch.cuda.device(x.device):
            apply[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)
        return y
