"""Every output reads its 49 neighbours itself: the first cache serves nothing else."""

import torch
import triton
import triton.language as tl

NAMES = ("l2_or_l1_bandwidth", "issue_bound")
ROWS, COLUMNS, REACH = 8192, 4096, 49


@triton.jit
def window_from_cache_sick(x_ptr, out_ptr, columns, REACH: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.program_id(0) * columns
    best = tl.load(x_ptr + begin + lane)
    for step in tl.static_range(1, REACH):
        x = tl.load(x_ptr + begin + tl.minimum(lane + step, columns - 1))
        best = tl.maximum(best, x)
    tl.store(out_ptr + begin + lane, best)


@triton.jit
def window_from_cache_healthy(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = tl.program_id(0) * columns
    best = tl.maximum(tl.load(x_ptr + begin + lane), 0.5)
    tl.store(out_ptr + begin + lane, best)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, min=0.5)


class Sick(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        grid = (x.shape[0], x.shape[1] // 1024)
        window_from_cache_sick[grid](x, out, x.shape[1], REACH=REACH, BLOCK=1024)
        return out


class Healthy(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        grid = (x.shape[0], x.shape[1] // 1024)
        window_from_cache_healthy[grid](x, out, x.shape[1], BLOCK=1024)
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLUMNS)]
