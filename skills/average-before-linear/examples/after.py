"""The mean over tokens first, then the linear layer on one vector per item."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

BATCH = 64
TOKENS = 4096
FEATURES = 1024


@triton.jit
def token_sums(
    x_ptr,
    part_ptr,
    tokens,
    features,
    PER_PROGRAM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    cols = tl.program_id(0) * BLOCK_F + tl.arange(0, BLOCK_F)
    base = x_ptr + tl.program_id(2).to(tl.int64) * tokens * features
    acc = tl.zeros((BLOCK_T, BLOCK_F), tl.float32)
    for start in range(0, PER_PROGRAM, BLOCK_T):
        rows = tl.program_id(1) * PER_PROGRAM + start + tl.arange(0, BLOCK_T)
        mask = (rows < tokens)[:, None] & (cols < features)[None, :]
        acc += tl.load(base + rows[:, None] * features + cols[None, :], mask=mask, other=0.0)
    part = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    tl.store(part_ptr + part * features + cols, tl.sum(acc, axis=0), mask=cols < features)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        batch, tokens, features = x.shape
        splits = triton.cdiv(tokens, 256)
        parts = torch.empty(batch, splits, features, device=x.device)
        grid = (triton.cdiv(features, 256), splits, batch)
        token_sums[grid](
            x, parts, tokens, features, PER_PROGRAM=256, BLOCK_T=16, BLOCK_F=256, num_warps=8
        )
        return F.linear(parts.sum(dim=1) / tokens, weight, bias)


def make_inputs(batch: int, tokens: int, features: int) -> list[torch.Tensor]:
    # Integer weights are finite in every test: infinite ones meet both signs token by token, but
    # only one sign after the mean.
    weight = torch.randint(-3, 4, (features, features)).float()
    return [torch.randn(batch, tokens, features), weight, torch.randn(features)]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(BATCH, TOKENS, FEATURES)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(2, 300, 48)
