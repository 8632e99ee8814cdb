# problem: layer_norm
# class: the variance of what the mean was taken off
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, w_ptr, b_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * n + o, mask=o < n, other=0.0)
    mean = tl.sum(x, axis=0) / n
    d = tl.where(o < n, x - mean, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / n + eps)
    w, b = tl.load(w_ptr + o, mask=o < n), tl.load(b_ptr + o, mask=o < n)
    tl.store(y_ptr + tl.program_id(0) * n + o, d * r * w + b, mask=o < n)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        rows[(x.numel() // n,)](
            x,
            self.norm.weight,
            self.norm.bias,
            y,
            n,
            self.norm.eps,
            BLOCK=triton.next_power_of_2(n),
        )
        return y
