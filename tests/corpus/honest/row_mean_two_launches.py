# problem: row_mean
# class: one launch adds what another has left
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_parts(x_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    o = part * BLOCK + tl.arange(0, BLOCK)
    s = tl.sum(tl.load(x_ptr + row * n + o, mask=o < n, other=0.0))
    tl.store(parts_ptr + row * tl.num_programs(1) + part, s)


@triton.jit
def add_up(parts_ptr, y_ptr, parts, n, BLOCK: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(
        y_ptr + row, tl.sum(tl.load(parts_ptr + row * parts + o, mask=o < parts, other=0.0)) / n
    )


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        parts = torch.empty((x.shape[0] * x.shape[1], triton.cdiv(x.shape[2], 8)), device=x.device)
        y = torch.empty(x.shape[:2], device=x.device)
        add_parts[parts.shape](x, parts, x.shape[2], BLOCK=8)
        add_up[(y.numel(),)](
            parts, y, parts.shape[1], x.shape[2], BLOCK=triton.next_power_of_2(parts.shape[1])
        )
        return y
