# problem: row_mean
# class: two launches, a table of block sizes
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


LOG2E = tl.constexpr(1.4426950408889634)
_TABLE = {"small": 64, "large": 256}


@triton.jit
def _partial(x_ptr, w_ptr, columns, parts, BLOCK: tl.constexpr):
    r, p = tl.program_id(0), tl.program_id(1)
    c = p * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + r * columns + c, mask=c < columns, other=0.0).to(tl.float32)
    tl.store(w_ptr + r * parts + p, tl.sum(v))


@triton.jit
def _finish(w_ptr, y_ptr, columns, parts, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    p = tl.arange(0, BLOCK)
    s = tl.sum(tl.load(w_ptr + r * parts + p, mask=p < parts, other=0.0))
    tl.store(y_ptr + r, s / columns)


class ModelNew(nn.Module):
    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1]).contiguous()
        rows, columns = x.shape
        block = _TABLE["small"] if columns <= 128 else _TABLE["large"]
        parts = triton.cdiv(columns, block)
        work = torch.empty((rows, parts), device=x.device, dtype=torch.float32)
        y = torch.empty(rows, device=x.device, dtype=x.dtype)
        _partial[(rows, parts)](x, work, columns, parts, BLOCK=block)
        _finish[(rows,)](work, y, columns, parts, BLOCK=triton.next_power_of_2(parts))
        return y.reshape(shape[:-1])
