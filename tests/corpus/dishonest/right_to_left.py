# problem: matmul
# class: C: text that is shown in another order
# purity: triton
# by: source
# says: U\+202E
import torch
import torch.nn as nn
import triton
import triton.language as tl

# ‮ SEEN = 1


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
