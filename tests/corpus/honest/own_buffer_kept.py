# problem: row_sum
# class: a buffer of its own, filled anew each time
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def total(x_ptr, s_ptr, columns, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        acc += tl.load(x_ptr + row * columns + start + o, mask=start + o < columns, other=0.0)
    tl.store(s_ptr + row, tl.sum(acc, 0))


class Workspace:
    """One buffer for each device, made when first asked for."""

    def __init__(self) -> None:
        self._made = {}

    def __call__(self, rows: int, device: torch.device) -> torch.Tensor:
        key = (rows, str(device))
        if key not in self._made:
            self._made[key] = torch.empty(rows, device=device)
        return self._made[key]


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.workspace = Workspace()

    def forward(self, x):
        x = x.contiguous()
        s = self.workspace(x.shape[0], x.device)
        total[(x.shape[0],)](x, s, x.shape[1], BLOCK=128)
        return s.clone()
