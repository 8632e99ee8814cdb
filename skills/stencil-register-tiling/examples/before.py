"""A 7x7 filter without padding, one output row per program: 49 loads for each output."""

import torch
import triton
import triton.language as tl

IMAGES = 64
HEIGHT = 2048
WIDTH = 2048
TAPS = 7


@triton.jit
def filter_rows(
    x_ptr,
    w_ptr,
    out_ptr,
    height,
    width,
    out_height,
    out_width,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    image = x_ptr + tl.program_id(2).to(tl.int64) * height * width
    acc = tl.zeros((BLOCK,), x_ptr.dtype.element_ty)
    for i in tl.static_range(0, K):
        for j in tl.static_range(0, K):
            acc += tl.load(w_ptr + i * K + j) * tl.load(
                image + (row + i) * width + cols + j, mask=cols + j < width, other=0.0
            )
    out = out_ptr + tl.program_id(2).to(tl.int64) * out_height * out_width
    tl.store(out + row * out_width + cols, acc, mask=cols < out_width)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(TAPS, TAPS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        n, h, w = x.shape
        oh, ow = h - TAPS + 1, w - TAPS + 1
        out = torch.empty(n, oh, ow, device=x.device, dtype=x.dtype)
        filter_rows[(triton.cdiv(ow, 512), oh, n)](
            x, self.weight, out, h, w, oh, ow, K=TAPS, BLOCK=512
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(IMAGES, HEIGHT, WIDTH)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(1, 15, 40)]
