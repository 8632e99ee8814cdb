# problem: matmul
# class: a product in splits, with a workspace kept by shape and a dataclass
# purity: triton
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


from dataclasses import dataclass
from typing import Dict, Tuple


@dataclass(frozen=True)
class Tiling:
    m: int = 16
    n: int = 16
    k: int = 16
    splits: int = 2


@triton.jit
def partial_product(
    a_ptr,
    b_ptr,
    w_ptr,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    pid = tl.program_id(0)
    split = tl.program_id(1)
    columns = tl.cdiv(N, BN)
    rm = (pid // columns) * BM + tl.arange(0, BM)
    rn = (pid % columns) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(split * BK, K, BK * SPLITS):
        rk = start + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * sam + rk[None, :] * sak,
            mask=(rm[:, None] < M) & (rk[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + rk[:, None] * sbk + rn[None, :] * sbn,
            mask=(rk[:, None] < K) & (rn[None, :] < N),
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(
        w_ptr + split * M * N + rm[:, None] * N + rn[None, :],
        acc,
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


@triton.jit
def add_up(w_ptr, out_ptr, n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(w_ptr + split * n + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, total, mask=mask)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tiling = Tiling()
        self._workspaces: Dict[Tuple[int, int], torch.Tensor] = {}

    def _workspace(self, m: int, n: int, device: torch.device) -> torch.Tensor:
        key = (m, n)
        if key not in self._workspaces:
            self._workspaces[key] = torch.empty(
                (self.tiling.splits, m, n), device=device, dtype=torch.float32
            )
        return self._workspaces[key]

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[1] != b.shape[0]:
            raise ValueError(f"a has {a.shape[1]} columns, b has {b.shape[0]} rows")
        (m, k), n, t = a.shape, b.shape[1], self.tiling
        work = self._workspace(m, n, a.device)
        out = torch.empty((m, n), device=a.device, dtype=a.dtype)
        partial_product[(triton.cdiv(m, t.m) * triton.cdiv(n, t.n), t.splits)](
            a,
            b,
            work,
            m,
            n,
            k,
            a.stride(0),
            a.stride(1),
            b.stride(0),
            b.stride(1),
            BM=t.m,
            BN=t.n,
            BK=t.k,
            SPLITS=t.splits,
            num_warps=4,
        )
        add_up[(triton.cdiv(m * n, 128),)](work, out, m * n, SPLITS=t.splits, BLOCK=128)
        return out
