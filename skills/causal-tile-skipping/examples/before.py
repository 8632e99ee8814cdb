"""Causal attention that computes every tile and masks the upper half away."""

import torch
import triton
import triton.language as tl

HEADS = 64
LENGTH = 4096
DIM = 64


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    S,
    SCALE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SKIP: tl.constexpr,
):
    base = tl.program_id(1) * S * D
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows first
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + d[None, :])
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    stop = S
    if SKIP:
        stop = (block + 1) * BLOCK_M
    for start in range(0, stop, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + base + keys[:, None] * D + d[None, :])
        v = tl.load(v_ptr + base + keys[:, None] * D + d[None, :])
        s = tl.dot(q, tl.trans(k)) * (SCALE * 1.4426950408889634)
        s = tl.where(rows[:, None] >= keys[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        fix = tl.exp2(m - new)
        total = total * fix + tl.sum(p, axis=1)
        acc = tl.dot(p.to(tl.float16), v, acc * fix[:, None])
        m = new
    tl.store(o_ptr + base + rows[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.float16))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one head, (length, dim) each, by PyTorch's operators."""
    future = torch.ones(q.shape[0], q.shape[0], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.t() * q.shape[1] ** -0.5).masked_fill(future, -float("inf"))
    return torch.softmax(scores, dim=1) @ v


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads, length, dim = q.shape
        assert length % 128 == 0 and dim == triton.next_power_of_2(dim), "whole tiles only"
        # where a judge computes the right answer: head by head, for all scores together take 8.6 GB
        if q.dtype is torch.float64:
            return torch.stack([attend(*head) for head in zip(q, k, v, strict=True)])
        q = q.contiguous()
        k = k.contiguous()
        v = v.contiguous()
        out = torch.empty_like(q)
        options = {"SCALE": dim**-0.5, "D": dim, "BLOCK_M": 128, "BLOCK_N": 64, "SKIP": False}
        attention[(length // 128, heads)](
            q, k, v, out, length, **options, num_warps=4, num_stages=3
        )
        return out


def make_inputs(heads: int, length: int, dim: int) -> list[torch.Tensor]:
    q, k = (torch.randn(heads, length, dim, dtype=torch.float16) for _ in range(2))
    # Integers are finite in every test: a weight of 0 does not hide an infinite or NaN value from
    # the tiles that are not skipped.
    return [q, k, torch.randint(-3, 4, (heads, length, dim)).half()]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(HEADS, LENGTH, DIM)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(1, 256, 32)
