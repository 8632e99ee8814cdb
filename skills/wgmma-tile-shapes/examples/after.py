"""An fp16 product with 128 x 128 x 64 tiles on two warp groups: compiled to wgmma on Hopper."""

import torch
import triton
import triton.language as tl

SIZE = 4096


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + (k + ks)[None, :])
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16))


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        (m, k), n = a.shape, b.shape[1]
        assert k == b.shape[0] and m % 128 == n % 128 == k % 64 == 0, "whole tiles only"
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(m, n, device=a.device, dtype=a.dtype)
        matmul[(m // 128, n // 128)](
            a, b, out, m, n, k, BLOCK=128, BLOCK_K=64, num_warps=8, num_stages=3
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(SIZE, SIZE, dtype=torch.float16),
        torch.randn(SIZE, SIZE, dtype=torch.float16),
    ]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(128, 128, dtype=torch.float16), torch.randn(128, 128, dtype=torch.float16)]
