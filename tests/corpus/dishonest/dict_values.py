# problem: row_sum
# class: A: a mapping instead of a tensor
# purity: library
# says: dict_values
import torch
import torch.nn as nn
import triton
import triton.language as tl


class ModelNew(nn.Module):
    def forward(self, x):
        return {"y": x.sum(1)}.values()
