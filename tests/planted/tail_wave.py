"""Programs of equal length, one more than the card runs at once."""

import torch
import triton
import triton.language as tl

NAMES = ("low_parallelism",)
SIZE = 264 * (1 << 17)


@triton.jit
def tail_wave_sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        total += tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


@triton.jit
def tail_wave_healthy(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    begin = tl.program_id(0) * size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        total += tl.load(x_ptr + begin + start + tl.arange(0, BLOCK))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(33)
        tail_wave_sick[(33,)](x, out, x.numel() // 33, BLOCK=2048)
        return out.sum()


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(4224)
        tail_wave_healthy[(4224,)](x, out, x.numel() // 4224, BLOCK=2048)
        return out.sum()


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(SIZE)]
