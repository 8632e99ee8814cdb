"""Global average pooling of 7x7 planes, a program for each: eight million programs of 196 bytes."""

import torch
import triton
import triton.language as tl

BATCH = 4096
CHANNELS = 2048
SIZE = 7


@triton.jit
def plane_mean(x_ptr, out_ptr, P, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    pos = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + plane.to(tl.int64) * P + pos, mask=pos < P, other=0.0)
    tl.store(out_ptr + plane, tl.sum(x, axis=0) / P)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        n, c, h, w = x.shape
        out = torch.empty(n, c, device=x.device, dtype=x.dtype)
        plane_mean[(n * c,)](x, out, h * w, BLOCK=triton.next_power_of_2(h * w), num_warps=1)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(BATCH, CHANNELS, SIZE, SIZE)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(5, 30, 7, 7)]
