# problem: matmul
# class: C: string annotations evaluated
# purity: triton
# by: source
# says: get_type_hints
import torch
import torch.nn as nn
import triton
import triton.language as tl

import typing


class Hints:
    x: 'print(__import__(chr(111) + chr(115)))'


typing.get_type_hints(Hints)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
