"""Blocks of a Llama-3-8B decoder in bf16: grouped-query attention, rotary positions, SwiGLU."""

import torch
import torch.nn.functional as F

BATCH = 1
LENGTH = 2048
WIDTH = 4096
HEADS = 32
GROUPS = 8
HIDDEN = 14336
BLOCKS = 4


class Norm(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.to(x.dtype) * self.weight


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(torch.nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups = heads, groups
        self.q = torch.nn.Linear(width, width, bias=False)
        self.k = torch.nn.Linear(width, width // heads * groups, bias=False)
        self.v = torch.nn.Linear(width, width // heads * groups, bias=False)
        self.o = torch.nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.groups, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.groups, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class Block(torch.nn.Module):
    def __init__(self, width, heads, groups, hidden):
        super().__init__()
        self.norm = Norm(width)
        self.attention = Attention(width, heads, groups)
        self.feed_norm = Norm(width)
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm(x), cos, sin)
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(torch.nn.Module):
    def __init__(self, width, heads, groups, hidden, blocks, length):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            Block(width, heads, groups, hidden) for _ in range(blocks)
        )
        self.norm = Norm(width)
        size = width // heads
        steps = 1.0 / 500000 ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(length).float(), steps)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.to(torch.bfloat16)
        self.eval()

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.norm(x)


def get_inputs():
    return [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS, GROUPS, HIDDEN, BLOCKS, LENGTH]
