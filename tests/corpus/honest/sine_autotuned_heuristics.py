# problem: sine
# class: triton.autotune over triton.heuristics
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4)], key=["n"])
@triton.heuristics({"BLOCK": lambda args: 32 if args["n"] < 1000 else 256})
@triton.jit
def apply(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(y_ptr + o, tl.sin(x), mask=o < n)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        apply[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
        return y
