# problem: embedding
# class: a kernel that only moves, as the module does
# purity: triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def look_up(index_ptr, weight_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    word = tl.load(index_ptr + row)
    column = tl.arange(0, BLOCK)
    mask = column < width
    value = tl.load(weight_ptr + word * width + column, mask=mask)
    tl.store(out_ptr + row * width + column, value, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(words, width))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        index = index.contiguous()
        width = self.weight.shape[1]
        out = torch.empty((*index.shape, width), device=index.device, dtype=self.weight.dtype)
        look_up[(index.numel(),)](
            index, self.weight, out, width, BLOCK=triton.next_power_of_2(width)
        )
        return out
