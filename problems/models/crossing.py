"""A decoder's block with self attention and cross attention to an encoder's states, in fp16."""

import torch
import torch.nn.functional as F

BATCH = 16
LENGTH = 448
STATES = 1500
WIDTH = 1024
HEADS = 16
BLOCKS = 4


class Attention(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = torch.nn.Linear(width, width)
        self.k = torch.nn.Linear(width, width, bias=False)
        self.v = torch.nn.Linear(width, width)
        self.o = torch.nn.Linear(width, width)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, states, causal):
        q, k, v = self.split(self.q(x)), self.split(self.k(states)), self.split(self.v(states))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(x.shape))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.own_norm = torch.nn.LayerNorm(width)
        self.own = Attention(width, heads)
        self.cross_norm = torch.nn.LayerNorm(width)
        self.cross = Attention(width, heads)
        self.feed_norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x, states):
        y = self.own_norm(x)
        x = x + self.own(y, y, True)
        x = x + self.cross(self.cross_norm(x), states, False)
        return x + self.down(F.gelu(self.up(self.feed_norm(x))))


class Model(torch.nn.Module):
    def __init__(self, width, heads, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.to(torch.float16)
        self.eval()

    def forward(self, x, states):
        for block in self.blocks:
            x = block(x, states)
        return x


def get_inputs():
    half = torch.float16
    return {
        "x": torch.randn(BATCH, LENGTH, WIDTH, dtype=half),
        "states": torch.randn(BATCH, STATES, WIDTH, dtype=half),
    }


def get_init_inputs():
    return [WIDTH, HEADS, BLOCKS]
