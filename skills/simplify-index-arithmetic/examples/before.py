"""Scale by channel and shift by depth, row and column; coordinates come from a flat 64-bit index by
division and modulo, per element.
"""

import torch
import triton
import triton.language as tl

# not multiples of 16: quotients differ within a vector of loads
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
    n,
    n_channels,
    depth,
    height,
    width,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    mask = index < n
    w = index % width
    h = (index // width) % height
    d = (index // (width * height)) % depth
    c = (index // (width * height * depth)) % n_channels
    WIDE: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    x = tl.load(x_ptr + index, mask=mask).to(WIDE)
    y = x * tl.load(scale_ptr + c, mask=mask) + tl.load(depth_ptr + d, mask=mask)
    y = y + tl.load(row_ptr + h, mask=mask) + tl.load(col_ptr + w, mask=mask)
    tl.store(out_ptr + index, y.to(x_ptr.dtype.element_ty), mask=mask)


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
        n, (_, c, d, h, w) = x.numel(), x.shape
        scale_shift[(triton.cdiv(n, 1024),)](
            x, scale, depth, row, col, out, n, c, d, h, w, BLOCK=1024
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
