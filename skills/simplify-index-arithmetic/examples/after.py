"""Scale by channel and shift by depth, row and column; the grid carries plane and row, the tile
carries the column.
"""

import torch
import triton
import triton.language as tl

BATCH = 4
CHANNELS = 30
DEPTH = 34
HEIGHT = 126
WIDTH = 504


@triton.jit
def scale_shift(
    x_ptr,
    scale_ptr,
    depth_ptr,
    row_ptr,
    col_ptr,
    out_ptr,
    C: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    plane = tl.program_id(0)
    h = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    w = tl.arange(0, BLOCK)
    mask = (h < H)[:, None] & (w < W)[None, :]
    offsets = h[:, None] * W + w[None, :]
    base = plane.to(tl.int64) * H * W
    x = tl.load(x_ptr + base + offsets, mask=mask).to(tl.float32)
    scale = tl.load(scale_ptr + plane // D % C)
    shift = tl.load(depth_ptr + plane % D)
    row = tl.load(row_ptr + h, mask=h < H)
    col = tl.load(col_ptr + w, mask=w < W)
    y = x * scale + shift + row[:, None] + col[None, :]
    tl.store(out_ptr + base + offsets, y.to(tl.float16), mask=mask)


class Model(torch.nn.Module):
    def forward(
        self,
        x: torch.Tensor,
        scale: torch.Tensor,
        depth: torch.Tensor,
        row: torch.Tensor,
        col: torch.Tensor,
    ) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        n, c, d, h, w = x.shape
        grid = (n * c * d, triton.cdiv(h, 8))
        scale_shift[grid](
            x,
            scale,
            depth,
            row,
            col,
            out,
            c,
            d,
            h,
            w,
            ROWS=8,
            BLOCK=triton.next_power_of_2(w),
            num_warps=8,
        )
        return out


def make_inputs(
    batch: int, channels: int, depth: int, height: int, width: int
) -> list[torch.Tensor]:
    x = torch.rand(batch, channels, depth, height, width, dtype=torch.float16)
    return [
        x,
        *(torch.rand(size, dtype=torch.float16) for size in (channels, depth, height, width)),
    ]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(2, 3, 5, 10, 20)
