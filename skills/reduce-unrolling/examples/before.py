"""A filter of 48 taps, every tap unrolled: the body is too long for registers and cache."""

import torch
import triton
import triton.language as tl

SIZE, TAPS = 1 << 25, 48


@triton.jit
def smooth(x_ptr, taps_ptr, out_ptr, size, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    total = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for tap in tl.static_range(TAPS):
        x = tl.load(x_ptr + place + tap, mask=inside, other=0.0)
        total += x * tl.load(taps_ptr + tap)
    tl.store(out_ptr + place, total, mask=inside)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        x, taps = x.contiguous(), taps.contiguous()
        size = x.numel() - taps.numel() + 1
        out = x.new_empty(size)
        smooth[(triton.cdiv(size, 2048),)](
            x, taps, out, size, TAPS=taps.numel(), BLOCK=2048, num_warps=4
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(SIZE), torch.rand(TAPS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(5000), torch.rand(TAPS)]
