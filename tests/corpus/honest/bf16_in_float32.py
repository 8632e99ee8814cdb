# problem: bf16_matmul
# class: casts for what it adds up, and back
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, BK: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    k = tl.arange(0, BK)
    acc = tl.zeros((B, B), dtype=tl.float32)
    for start in range(0, K, BK):
        inner = start + k
        am = (i[:, None] < M) & (inner[None, :] < K)
        bm = (inner[:, None] < K) & (j[None, :] < N)
        a = tl.load(a_ptr + i[:, None] * K + inner[None, :], mask=am, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * N + j[None, :], mask=bm, other=0.0)
        acc += tl.dot(a, b)
    out = c_ptr + i[:, None] * N + j[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(i[:, None] < M) & (j[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty((m, n), device=a.device, dtype=a.dtype)
        product[(triton.cdiv(m, 16), triton.cdiv(n, 16))](a, b, c, m, n, k, BK=16, B=16)
        return c
