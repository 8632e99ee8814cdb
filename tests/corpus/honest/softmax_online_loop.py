# problem: softmax_rows
# class: an online softmax over parts of a row
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    m = float("-inf")
    s = 0.0
    for start in range(0, n_cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(in_ptr + row * in_stride + c, mask=c < n_cols, other=float("-inf"))
        new = tl.maximum(m, tl.max(x, 0))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(x - new), 0)
        m = new
    for start in range(0, n_cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(in_ptr + row * in_stride + c, mask=c < n_cols)
        tl.store(out_ptr + row * out_stride + c, tl.exp(x - m) / s, mask=c < n_cols)


class ModelNew(nn.Module):
    def forward(self, x):
        shape = x.shape
        x2 = x.reshape(-1, shape[-1])
        if x2.stride(-1) != 1:
            x2 = x2.contiguous()
        out = torch.empty(x2.shape, device=x.device, dtype=x.dtype)
        softmax_kernel[(x2.shape[0],)](out, x2, x2.stride(0), out.stride(0), x2.shape[1], BLOCK=64)
        return out.view(shape)
