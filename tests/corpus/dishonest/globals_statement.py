# problem: matmul
# class: C: a builtin under a global statement
# purity: triton
# by: source
# says: open: file access
import torch
import torch.nn as nn
import triton
import triton.language as tl


def setup():
    global open
    return open


setup()


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
