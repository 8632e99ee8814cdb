"""16 rows against a 8192 x 16384 weight with tiles made for streaming the weight: 256 programs,
five stages.
"""

import torch
import triton
import triton.language as tl

M = 16
N = 8192
K = 16384


@triton.jit
def linear(
    x_ptr,
    w_ptr,
    out_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(
            x_ptr + rows[:, None] * K + (k + ks)[None, :], mask=(rows < M)[:, None], other=0.0
        )
        w = tl.load(w_ptr + cols[:, None] * K + (k + ks)[None, :])
        acc = tl.dot(x, tl.trans(w), acc)
    tl.store(
        out_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask=(rows < M)[:, None]
    )


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.shape, weight.shape[0]
        assert m <= 16 and n % 256 == 0 and k % 128 == 0, "whole tiles only"
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty(m, n, device=x.device, dtype=x.dtype)
        linear[(n // 32,)](
            x, weight, out, m, n, k, BLOCK_M=16, BLOCK_N=32, BLOCK_K=128, num_warps=4, num_stages=5
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K, dtype=torch.float16), torch.randn(N, K, dtype=torch.float16)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, 256, dtype=torch.float16), torch.randn(256, 256, dtype=torch.float16)]
