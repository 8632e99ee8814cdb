# problem: min_and_max
# class: results: a tuple with named fields
# purity: library
import torch
import torch.nn as nn
import triton
import triton.language as tl

from collections import namedtuple

Extremes = namedtuple("Extremes", "low high")


class ModelNew(nn.Module):
    def forward(self, x):
        return Extremes(x.amin(1), x.amax(1))
