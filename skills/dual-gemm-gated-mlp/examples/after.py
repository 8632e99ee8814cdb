"""SwiGLU with two accumulators over one pass of x; only the gated result is stored."""

import torch
import triton
import triton.language as tl

M = 16384
K = 256
N = 8192


@triton.jit
def gated_matmul(
    x_ptr,
    g_ptr,
    u_ptr,
    out_ptr,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + rows[:, None] * K + (k + ks)[None, :])
        weights = (k + ks)[:, None] * N + cols[None, :]
        gate = tl.dot(x, tl.load(g_ptr + weights), gate)
        up = tl.dot(x, tl.load(u_ptr + weights), up)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], out.to(tl.float16))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.shape, gate.shape[1]
        assert m % 128 == n % 128 == k % 64 == 0, "whole tiles only"
        x = x.contiguous()
        gate = gate.contiguous()
        up = up.contiguous()
        out = torch.empty(m, n, device=x.device, dtype=x.dtype)
        grid = (m // 128, n // 128)
        gated_matmul[grid](
            x, gate, up, out, n, k, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3
        )
        return out


def make_inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
    # Integer weights stay small in every test: neither product alone comes near float16's largest
    # number.
    weights = [torch.randint(-1, 2, (k, n)).half() for _ in range(2)]
    return [torch.randn(m, k, dtype=torch.float16), *weights]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(M, K, N)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(128, 64, 128)
