# problem: transposed_copy
# class: tiles of a transposition
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tile(x_ptr, y_ptr, M, N, rows, columns, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    inside = (m[:, None] < M) & (n[None, :] < N)
    x = tl.load(x_ptr + m[:, None] * rows + n[None, :] * columns, mask=inside)
    tl.store(y_ptr + n[None, :] * M + m[:, None], x * 2, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((x.shape[1], x.shape[0]), device=x.device)
        tile[(triton.cdiv(x.shape[0], 8), triton.cdiv(x.shape[1], 8))](
            x, y, x.shape[0], x.shape[1], x.stride(0), x.stride(1), B=8
        )
        return y
