# problem: row_max
# class: a persistent kernel with a reduction of its own
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


def _sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _combine(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def persistent_max(x_ptr, y_ptr, rows, columns, stride, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        best = tl.full((BLOCK,), float("-inf"), tl.float32)
        for start in range(0, columns, BLOCK):
            c = start + tl.arange(0, BLOCK)
            best = _combine(
                best, tl.load(x_ptr + row * stride + c, mask=c < columns, other=float("-inf"))
            )
        tl.store(y_ptr + row, tl.reduce(best, 0, _combine))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        y = x.new_empty(rows)
        grid = (min(_sms(x.device), rows),)
        persistent_max[grid](x, y, rows, columns, x.stride(0), BLOCK=32)
        return y
