"""RMSNorm over channels of NCHW, one pixel per program: lanes along channels, 1 MB apart."""

import torch
import triton
import triton.language as tl

BATCH = 16
CHANNELS = 64
SIZE = 512


@triton.jit
def rms_norm(x_ptr, out_ptr, P, C: tl.constexpr):
    pixel = tl.program_id(0)
    offsets = tl.program_id(1).to(tl.int64) * C * P + tl.arange(0, C) * P + pixel
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, x * tl.rsqrt(tl.sum(x * x, axis=0) / C + 1e-5))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        n, c, h, w = x.shape
        out = torch.empty_like(x)
        rms_norm[(h * w, n)](x, out, h * w, C=c, num_warps=1)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 16, 6, 7)]
