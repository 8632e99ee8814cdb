# problem: sine
# class: a class that launches, with __call__ and a context manager
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def sine(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.sin(tl.load(x_ptr + o, mask=m)), mask=m)


class Launcher:
    def __init__(self, kernel, block: int) -> None:
        self.kernel, self.block = kernel, block

    def __enter__(self):
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.last = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        self.kernel[(triton.cdiv(x.numel(), self.block),)](x, y, x.numel(), BLOCK=self.block)
        return y


class ModelNew(nn.Module):
    def forward(self, x):
        with Launcher(sine, 64) as launch, torch.no_grad():
            return launch(x.contiguous())
