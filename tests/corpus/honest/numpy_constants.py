# problem: gelu
# class: numpy: constants made with NumPy
# purity: library
import torch
import torch.nn as nn
import triton
import triton.language as tl

import numpy as np

SCALE = float(np.sqrt(np.float64(2.0)))


class ModelNew(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.erf(x / SCALE))
