"""Mean over a window of 16 rows, stride 1, as a running sum down a strip: two loads for every
output.
"""

import torch
import triton
import triton.language as tl

IMAGES = 128
HEIGHT = 2063
WIDTH = 1024
WINDOW = 16


@triton.jit
def window_mean(
    x_ptr,
    out_ptr,
    height,
    width,
    out_height,
    K: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # the sum restarts in each segment, which bounds drift and makes parallelism
    first = tl.program_id(1) * SEGMENT
    image = x_ptr + tl.program_id(2).to(tl.int64) * height * width
    out = out_ptr + tl.program_id(2).to(tl.int64) * out_height * width
    mask = cols < width
    acc = tl.zeros((BLOCK,), tl.float32)
    for t in range(K - 1):
        acc += tl.load(image + (first + t) * width + cols, mask=mask, other=0.0)
    for row in range(first, min(first + SEGMENT, out_height)):
        acc += tl.load(image + (row + K - 1) * width + cols, mask=mask, other=0.0)
        tl.store(out + row * width + cols, acc / K, mask=mask)
        acc -= tl.load(image + row * width + cols, mask=mask, other=0.0)
    # infinity or NaN never leaves a running sum: add up these windows anew
    if tl.sum((acc - acc != 0.0).to(tl.int32), axis=0) > 0:
        for row in range(first, min(first + SEGMENT, out_height)):
            acc = tl.zeros((BLOCK,), tl.float32)
            for t in range(K):
                acc += tl.load(image + (row + t) * width + cols, mask=mask, other=0.0)
            tl.store(out + row * width + cols, acc / K, mask=mask)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        n, h, w = x.shape
        oh = h - WINDOW + 1
        out = torch.empty(n, oh, w, device=x.device, dtype=x.dtype)
        window_mean[(triton.cdiv(w, 512), triton.cdiv(oh, 64), n)](
            x, out, h, w, oh, K=WINDOW, SEGMENT=64, BLOCK=512, num_warps=4
        )
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(IMAGES, HEIGHT, WIDTH)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(1, 90, 70)]
