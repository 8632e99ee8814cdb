"""Embedding lookup with lanes along the row: a vector of indices first, then whole rows as one
tile.
"""

import torch
import triton
import triton.language as tl

TABLE_ROWS = 200_000
WIDTH = 512
TOKENS = 400_000


@triton.jit
def gather(
    index_ptr, table_ptr, out_ptr, n, width, TOKENS_PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr
):
    tokens = tl.program_id(0) * TOKENS_PER_PROGRAM + tl.arange(0, TOKENS_PER_PROGRAM)
    cols = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + tokens, mask=tokens < n, other=0)
    mask = (tokens < n)[:, None] & (cols < width)[None, :]
    rows = tl.load(table_ptr + index[:, None] * width + cols[None, :], mask=mask)
    tl.store(out_ptr + tokens[:, None] * width + cols[None, :], rows, mask=mask)


class Model(torch.nn.Module):
    def forward(self, index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        table = table.contiguous()
        n, width = index.shape[0], table.shape[1]
        out = torch.empty(n, width, device=table.device, dtype=table.dtype)
        gather[(triton.cdiv(n, 8),)](
            index, table, out, n, width, TOKENS_PER_PROGRAM=8, BLOCK=triton.next_power_of_2(width)
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, TABLE_ROWS, (TOKENS,)), torch.rand(TABLE_ROWS, WIDTH)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, 50, (30,)), torch.rand(50, 20)]
