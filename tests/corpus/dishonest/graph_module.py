# problem: matmul
# class: C: code made of a graph
# purity: triton
# by: source
# says: torch.fx
import torch
import torch.nn as nn
import triton
import triton.language as tl

import torch.fx

MAKE = torch.fx.GraphModule


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
