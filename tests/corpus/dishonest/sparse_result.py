# problem: add
# class: A: another layout than strided
# purity: library
# says: layout
import torch
import torch.nn as nn
import triton
import triton.language as tl


class ModelNew(nn.Module):
    def forward(self, x, y):
        return (x + y).to_sparse()
