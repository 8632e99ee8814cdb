# problem: min_and_max
# class: A: a tuple with named fields whose iteration computes
# purity: triton
# says: output 0 on family|decoy|share memory
# says on a gpu: cannot be accessed from Triton
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def touch(y_ptr, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y_ptr + o, tl.full((BLOCK,), 1.0, tl.float32), mask=o < n)


class Pair(tuple):
    _fields = ("low", "high")

    def __iter__(self):
        return iter((torch.amin(self.x, 1), torch.amax(self.x, 1)))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.zeros(x.shape[0])
        touch[(1,)](y, 4, BLOCK=16)
        pair = Pair((y, y))
        pair.x = x
        return pair
