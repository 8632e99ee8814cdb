"""Mean squared error: a partial sum per program, then a second pass over a few thousand values."""

import torch
import triton
import triton.language as tl

COUNT = 1 << 27


@triton.jit
def partial_loss(p_ptr, t_ptr, part_ptr, n, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, CHUNK, BLOCK, num_stages=3):
        offsets = tl.program_id(0) * CHUNK + start + tl.arange(0, BLOCK)
        d = tl.load(p_ptr + offsets, mask=offsets < n, other=0.0) - tl.load(
            t_ptr + offsets, mask=offsets < n, other=0.0
        )
        acc += d * d
    tl.store(part_ptr + tl.program_id(0), tl.sum(acc, axis=0))


@triton.jit
def add_parts(part_ptr, out_ptr, count, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        acc += tl.load(part_ptr + offsets, mask=offsets < count, other=0.0)
    tl.store(out_ptr, tl.sum(acc, axis=0) / n)


class Model(torch.nn.Module):
    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        n = prediction.numel()
        count = triton.cdiv(n, 32768)
        parts = torch.empty(count, device=prediction.device)
        out = torch.empty((), device=prediction.device)
        partial_loss[(count,)](prediction, target, parts, n, CHUNK=32768, BLOCK=4096, num_warps=8)
        add_parts[(1,)](parts, out, count, n, BLOCK=4096, num_warps=8)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(COUNT), torch.rand(COUNT)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(40_000), torch.rand(40_000)]
