# problem: matmul
# class: C: a custom operator by another path
# purity: triton
# by: source
# says: torch.library
import torch
import torch.nn as nn
import triton
import triton.language as tl

import torch.nn.functional as F

register = F.torch.library.custom_op


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
