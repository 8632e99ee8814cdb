# problem: matmul
# class: the last part of a reduction is left out
# says: family
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, B: tl.constexpr):
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K // B):
        r = k * B + tl.arange(0, B)
        a = tl.load(a_ptr + m[:, None] * K + r[None, :], mask=m[:, None] < M, other=0.0)
        b = tl.load(b_ptr + r[:, None] * N + n[None, :], mask=n[None, :] < N, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        c = torch.empty(a.shape[0], b.shape[1], device=a.device)
        grid = (triton.cdiv(a.shape[0], 16), triton.cdiv(b.shape[1], 16))
        product[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], B=16)
        return c
