"""Planes from interleaved RGBA; each program reads one channel with stride 4 and throws three
quarters of every sector away.
"""

import torch
import triton
import triton.language as tl

PIXELS, CHANNELS = 1 << 26, 4


@triton.jit
def deinterleave(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    value = tl.load(x_ptr + pixel * 4 + channel, mask=pixel < n)
    tl.store(out_ptr + channel * n + pixel, value, mask=pixel < n)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == CHANNELS
        x = x.contiguous()
        n = x.shape[0]
        out = torch.empty(CHANNELS, n, device=x.device, dtype=x.dtype)
        deinterleave[(triton.cdiv(n, 1024), CHANNELS)](x, out, n, BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(PIXELS, CHANNELS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(1000, CHANNELS)]
