"""logsumexp over the outputs of a linear layer: each tile stores one maximum and sum per row."""

import torch
import triton
import triton.language as tl

M = 16384
K = 256
N = 16384


@triton.jit
def tile_logsumexp(x_ptr, w_ptr, m_ptr, s_ptr, M, K, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + rows[:, None] * K + (k + ks)[None, :])
        w = tl.load(w_ptr + cols[:, None] * K + (k + ks)[None, :])
        acc = tl.dot(x, tl.trans(w), acc)
    top = tl.max(acc, axis=1)
    tl.store(m_ptr + tl.program_id(1) * M + rows, top)
    shift = tl.where(tl.abs(top) == float("inf"), 0.0, top)  # infinity minus itself would be NaN
    tl.store(s_ptr + tl.program_id(1) * M + rows, tl.sum(tl.exp(acc - shift[:, None]), axis=1))


@triton.jit
def merge_tiles(m_ptr, s_ptr, out_ptr, M, TILES: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offsets = tl.arange(0, TILES)[:, None] * M + rows[None, :]
    m = tl.load(m_ptr + offsets)
    top = tl.max(m, axis=0)
    shift = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    finite = tl.where(tl.abs(m) == float("inf"), 0.0, m)  # what the tile's own sum was shifted by
    # A sum of 0 is a tile of -inf alone: it adds nothing, however far below the others' shift.
    total = tl.sum(
        tl.where(
            m == -float("inf"), 0.0, tl.load(s_ptr + offsets) * tl.exp(finite - shift[None, :])
        ),
        axis=0,
    )
    tl.store(out_ptr + rows, shift + tl.log(total))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.shape, weight.shape[0]
        if m % 128 or n % 128 or k % 64:
            return torch.logsumexp((x @ weight.t()).float(), dim=1)
        x, weight = x.contiguous(), weight.contiguous()
        tiles = n // 128
        tops = torch.empty(tiles, m, device=x.device)
        sums = torch.empty_like(tops)
        out = torch.empty(m, device=x.device)
        tile_logsumexp[(m // 128, tiles)](
            x, weight, tops, sums, m, k, BLOCK=128, BLOCK_K=64, num_warps=8, num_stages=3
        )
        merge_tiles[(m // 32,)](tops, sums, out, m, TILES=tiles, BLOCK=32)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K, dtype=torch.float16), torch.randn(N, K, dtype=torch.float16) / 16]


def get_small_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(128, 64, dtype=torch.float16),
        torch.randn(256, 64, dtype=torch.float16) / 8,
    ]
