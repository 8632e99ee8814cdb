# problem: add
# class: C: opens a connection
# purity: library
# by: worker
# says: PermissionError
import torch
import torch.nn as nn
import triton
import triton.language as tl

import socket


class ModelNew(nn.Module):
    def forward(self, x, y):
        socket.create_connection(("127.0.0.1", 80), timeout=1)
        return x + y
