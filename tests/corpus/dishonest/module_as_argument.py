# problem: matmul
# class: C: a module handed to a function that changes it
# purity: triton
# by: source
# says: torch: a module is passed on
import torch
import torch.nn as nn
import triton
import triton.language as tl


def loosen(m):
    m.set_float32_matmul_precision("medium")


loosen(torch)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
