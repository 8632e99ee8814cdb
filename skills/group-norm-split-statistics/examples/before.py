"""GroupNorm with 16 groups of 32 MB, one program per group: 16 programs on 132 SMs."""

import torch
import triton
import triton.language as tl

BATCH = 2
CHANNELS = 64
SIZE = 1024
GROUPS = 8


@triton.jit
def group_norm(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    square = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + offsets, mask=offsets < n, other=0.0)
        total += x
        square += x * x
    mean = tl.sum(total, axis=0) / n
    rstd = tl.rsqrt(tl.sum(square, axis=0) / n - mean * mean + 1e-5)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + offsets, mask=offsets < n)
        tl.store(out_ptr + base + offsets, (x - mean) * rstd, mask=offsets < n)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        groups = x.shape[0] * GROUPS
        group_norm[(groups,)](x, out, x.numel() // groups, BLOCK=8192, num_warps=16)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(1, 16, 128, 128)]
