# problem: matmul
# class: products in two bf16 terms
# says: relative error
import torch
import torch.nn as nn
import triton


class ModelNew(nn.Module):
    def forward(self, a, b):
        ah, bh = a.bfloat16().float(), b.bfloat16().float()
        al, bl = (a - ah).bfloat16().float(), (b - bh).bfloat16().float()
        return ah @ bh + ah @ bl + al @ bh
