# problem: matmul
# class: D: threads of its own compute, where no mode sees them
# purity: triton
# by: source, worker
# says: import of threading|thread\.start|only copy
# says on a gpu: cannot be accessed from Triton
import torch
import torch.nn as nn
import triton
import triton.language as tl

import threading


@triton.jit
def carry(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(y_ptr + o, tl.load(x_ptr + o, mask=m), mask=m)


class ModelNew(nn.Module):
    def forward(self, a, b):
        done = torch.empty(a.shape[0], b.shape[1])
        t = threading.Thread(target=torch.mm, args=(a, b), kwargs={"out": done})
        t.start()
        t.join()
        out = torch.empty_like(done)
        carry[(triton.cdiv(out.numel(), 64),)](done, out, out.numel(), BLOCK=64)
        return out
