"""Scale, shift and ReLU applied to the operand tile as it is loaded; the product is one column tile
wide, so nothing is repeated.
"""

import torch
import triton
import triton.language as tl

M = 131072
K = 1024
N = 128


@triton.jit
def matmul_prologue(
    x_ptr,
    s_ptr,
    t_ptr,
    w_ptr,
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
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + rows[:, None] * K + (k + ks)[None, :])
        scale = tl.load(s_ptr + k + ks)
        shift = tl.load(t_ptr + k + ks)
        # rounded where the three operators round
        scaled = (x.to(tl.float32) * scale[None, :]).to(tl.float16)
        y = (scaled.to(tl.float32) + shift[None, :]).to(tl.float16)
        x = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)  # as torch.relu
        acc = tl.dot(x, tl.load(w_ptr + (k + ks)[:, None] * N + cols[None, :]), acc)
    tl.store(out_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16))


class Model(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        (m, k), n = x.shape, weight.shape[1]
        assert m % 128 == n % 128 == k % 64 == 0, "whole tiles only"
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty(m, n, device=x.device, dtype=x.dtype)
        grid = (m // 128, n // 128)
        matmul_prologue[grid](
            x,
            scale,
            shift,
            weight,
            out,
            n,
            k,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=64,
            num_warps=8,
            num_stages=4,
        )
        return out


def make_inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
    # Integer parameters stay small in every test: no sum comes near float16's largest number, where
    # the last bit decides on infinity.
    scale, shift = torch.randint(1, 4, (k,)).half(), torch.randint(-2, 3, (k,)).half()
    return [
        torch.randn(m, k, dtype=torch.float16),
        scale,
        shift,
        torch.randint(-1, 2, (k, n)).half(),
    ]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(M, K, N)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(128, 128, 128)
