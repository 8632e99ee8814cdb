# problem: cross_entropy_loss
# class: an ignored label taken for the first
# purity: triton
# says: relative error|not finite
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, l_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < columns
    v = tl.load(x_ptr + r * columns + c, mask=m, other=float("-inf"))
    l = tl.maximum(tl.load(l_ptr + r), 0)
    top = tl.max(v, 0)
    s = tl.log(tl.sum(tl.exp(v - top), 0)) + top
    tl.store(y_ptr + r, s - tl.sum(tl.where(c == l, v, 0.0), 0))


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        logits, labels = logits.contiguous(), labels.contiguous()
        y = torch.empty(logits.shape[0], device=logits.device)
        work[(logits.shape[0],)](
            logits, labels, y, logits.shape[1], BLOCK=triton.next_power_of_2(logits.shape[1])
        )
        return y
