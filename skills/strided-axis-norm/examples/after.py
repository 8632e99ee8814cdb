"""RMSNorm over channels of NCHW with the channel column of 128 pixels in registers: lanes along
pixels, one read.
"""

import torch
import triton
import triton.language as tl

BATCH = 16
CHANNELS = 64
SIZE = 512


@triton.jit
def rms_norm(x_ptr, out_ptr, P, C: tl.constexpr, BLOCK: tl.constexpr):
    pixels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offsets = tl.program_id(1).to(tl.int64) * C * P + tl.arange(0, C)[:, None] * P + pixels[None, :]
    mask = (pixels < P)[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / C + 1e-5)
    tl.store(out_ptr + offsets, x * scale[None, :], mask=mask)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        n, c, h, w = x.shape
        out = torch.empty_like(x)
        rms_norm[(triton.cdiv(h * w, 128), n)](x, out, h * w, C=c, BLOCK=128, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 16, 6, 7)]
