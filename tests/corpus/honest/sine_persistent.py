# problem: sine
# class: as many programs as multiprocessors
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def apply(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        o = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=o < n)), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        programs = torch.cuda.get_device_properties(x.device).multi_processor_count
        apply[(min(programs, 5),)](x, y, x.numel(), BLOCK=32)
        return y
