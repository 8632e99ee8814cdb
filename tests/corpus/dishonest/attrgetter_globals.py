# problem: matmul
# class: C: globals of a function by attrgetter
# purity: triton
# by: source
# says: operator.attrgetter
import torch
import torch.nn as nn
import triton
import triton.language as tl

import operator

REACH = operator.attrgetter('__glo' + 'bals__')(nn.Module.forward)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
