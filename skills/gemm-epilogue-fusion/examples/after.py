"""Linear layer with bias and ReLU applied to the accumulator before its only store."""

import torch
import triton
import triton.language as tl

M = 65536
K = 256
N = 2048


@triton.jit
def matmul_bias_relu(
    a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :])
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    # rounded where two kernels round
    y = acc.to(tl.float16).to(tl.float32) + tl.load(bias_ptr + cols).to(tl.float32)[None, :]
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], tl.maximum(y, 0.0).to(tl.float16))


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[1]
        assert k == b.shape[0] and m % 128 == n % 128 == k % 64 == 0, "whole tiles only"
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(m, n, device=a.device, dtype=a.dtype)
        matmul_bias_relu[(m // 128, n // 128)](
            a, b, bias, out, m, n, k, BLOCK=128, BLOCK_K=64, num_warps=8, num_stages=3
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    weight = torch.randn(K, N, dtype=torch.float16) / 16
    return [torch.randn(M, K, dtype=torch.float16), weight, torch.randn(N, dtype=torch.float16)]


def get_small_inputs() -> list[torch.Tensor]:
    weight = torch.randn(64, 128, dtype=torch.float16) / 8
    return [
        torch.randn(128, 64, dtype=torch.float16),
        weight,
        torch.randn(128, dtype=torch.float16),
    ]
