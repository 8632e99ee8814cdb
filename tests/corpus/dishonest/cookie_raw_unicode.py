# -*- coding: raw_unicode_escape -*-
# problem: matmul
# class: C: a coding under which a comment is code
# purity: triton
# by: source
# says: coding raw_unicode_escape
import torch
import torch.nn as nn
import triton
import triton.language as tl

# \u000aSEEN = torch.ops


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
