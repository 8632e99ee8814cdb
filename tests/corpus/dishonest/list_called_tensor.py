# problem: matmul
# class: work after the observed call: a list that computes when it is read
# purity: triton
# says: returns a \S*tensor, expected a tensor
# says on a gpu: cannot be accessed from Triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def touch(x_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(x_ptr + o, tl.zeros((BLOCK,), tl.float32), mask=o < n)


class tensor(list):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def __iter__(self):
        yield self.make()

    def __len__(self):
        return 1


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(1)
        touch[(1,)](y, 1, BLOCK=16)
        return tensor(lambda: a @ b)
