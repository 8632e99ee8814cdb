# problem: softmax
# class: B: a grandchild whose parent is gone
# purity: library
# by: source, worker
# says: import of os|a process that outlives
import torch
import torch.nn as nn
import triton
import triton.language as tl

import os
import signal


class ModelNew(nn.Module):
    def forward(self, x):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                signal.pause()
            os._exit(0)
        os.waitpid(pid, 0)
        return torch.softmax(x, -1)
