"""Product of two lower triangular matrices as a full product, then the lower triangle of it."""

import torch
import triton
import triton.language as tl

SIZE = 8192


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, N, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, N, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * N + (k + ks)[None, :])
        b = tl.load(b_ptr + (k + ks)[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16))


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        n = a.shape[0]
        assert a.shape == b.shape == (n, n) and n % 128 == 0, "whole tiles only"
        # where a judge computes the right answer: the tiles are made for float16
        if a.dtype is torch.float64:
            return torch.tril(a @ b)
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty_like(a)
        matmul[(n // 128, n // 128)](a, b, out, n, BLOCK=128, BLOCK_K=64, num_warps=8, num_stages=3)
        return torch.tril(out)


def make_inputs(size: int) -> list[torch.Tensor]:
    # Integers are finite in every test: 0 times infinity is NaN, but not if the zero's tile is
    # skipped.
    return [torch.randint(-4, 5, (size, size)).half().tril() for _ in range(2)]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(SIZE)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(256)
