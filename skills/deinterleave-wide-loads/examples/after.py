"""Planes from interleaved RGBA; one dense wide load per program, channels separated in registers by
two splits.
"""

import torch
import triton
import triton.language as tl

PIXELS, CHANNELS = 1 << 26, 4


@triton.jit
def deinterleave(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    dense = tl.program_id(0) * 4 * BLOCK + tl.arange(0, 4 * BLOCK)
    value = tl.reshape(tl.load(x_ptr + dense, mask=dense < 4 * n), (BLOCK, 2, 2))
    even, odd = tl.split(value)  # channels 0 and 2, channels 1 and 3
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + pixel, first, mask=pixel < n)
    tl.store(out_ptr + n + pixel, second, mask=pixel < n)
    tl.store(out_ptr + 2 * n + pixel, third, mask=pixel < n)
    tl.store(out_ptr + 3 * n + pixel, fourth, mask=pixel < n)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == CHANNELS
        x = x.contiguous()
        n = x.shape[0]
        out = torch.empty(CHANNELS, n, device=x.device, dtype=x.dtype)
        deinterleave[(triton.cdiv(n, 512),)](x, out, n, BLOCK=512)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(PIXELS, CHANNELS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(1000, CHANNELS)]
