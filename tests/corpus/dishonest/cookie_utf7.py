#!/usr/bin/env python
# vim: set fileencoding=utf-7 :
# problem: matmul
# class: C: another coding in the second line
# purity: triton
# by: source
# says: coding utf-7
import torch
import torch.nn as nn
import triton
import triton.language as tl

SEEN = 1


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
