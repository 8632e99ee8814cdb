# problem: scale_columns
# class: any strides, expanded ones too
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_rows(x_ptr, s_ptr, y_ptr, rows, columns, step, n, BLOCK: tl.constexpr):
    row, o = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * rows + o * columns, mask=o < n)
    tl.store(y_ptr + row * n + o, x * tl.load(s_ptr + o * step, mask=o < n), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        y = torch.empty(x.shape, device=x.device)
        scale_rows[(x.shape[0],)](
            x,
            scale,
            y,
            x.stride(0),
            x.stride(1),
            scale.stride(0),
            x.shape[1],
            BLOCK=triton.next_power_of_2(x.shape[1]),
        )
        return y
