# problem: row_sum
# class: B: a pool of threads that is never shut down
# purity: library
# by: source, worker
# says: import of concurrent|a thread that outlives
import torch
import torch.nn as nn
import triton
import triton.language as tl

from concurrent.futures import ThreadPoolExecutor

POOL = ThreadPoolExecutor(1)


class ModelNew(nn.Module):
    def forward(self, x):
        return POOL.submit(torch.sum, x, 1).result()
