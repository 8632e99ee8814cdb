"""One step of decoding with a cache of keys and values: four Llama-style blocks, one new token."""

import torch
import torch.nn.functional as F

BATCH = 8
CACHED = 4096
WIDTH = 2048
HEADS = 16
HIDDEN = 5632
BLOCKS = 4


class Block(torch.nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.feed_norm = torch.nn.RMSNorm(width)
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x, keys, values):
        batch, _, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, 1, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
        y = F.scaled_dot_product_attention(q, keys, values)
        x = x + self.out(y.transpose(1, 2).reshape(batch, 1, width))
        y = self.feed_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), (k, v)


class Model(torch.nn.Module):
    def __init__(self, width, heads, hidden, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width, heads, hidden) for _ in range(blocks))
        self.to(torch.bfloat16)
        self.eval()

    def forward(self, x, cache):
        new = []
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            x, added = block(x, keys, values)
            new.append(added)
        return {"hidden": x, "cache": new}


def get_inputs():
    shape = (BATCH, HEADS, CACHED, WIDTH // HEADS)
    cache = [
        (torch.randn(shape, dtype=torch.bfloat16), torch.randn(shape, dtype=torch.bfloat16))
        for _ in range(BLOCKS)
    ]
    return [torch.randn(BATCH, 1, WIDTH, dtype=torch.bfloat16), cache]


def get_init_inputs():
    return [WIDTH, HEADS, HIDDEN, BLOCKS]
