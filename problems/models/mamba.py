"""Mamba-2 blocks as matrix products over chunks (the dual form of a selective scan), in fp32."""

import torch
import torch.nn.functional as F

BATCH = 4
LENGTH = 2048
WIDTH = 1024
HEADS = 32
STATE = 64
CHUNK = 128
BLOCKS = 4


class Block(torch.nn.Module):
    def __init__(self, width, heads, state, chunk):
        super().__init__()
        self.heads, self.state, self.chunk = heads, state, chunk
        inner = 2 * width
        self.norm = torch.nn.RMSNorm(width)
        self.into = torch.nn.Linear(width, 2 * inner + 2 * state + heads, bias=False)
        self.mix = torch.nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.rate = torch.nn.Parameter(torch.zeros(heads))
        self.skip = torch.nn.Parameter(torch.ones(heads))
        self.out_norm = torch.nn.RMSNorm(inner)
        self.out = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        inner, chunks = 2 * width, length // self.chunk
        z, u, b, c, step = self.into(self.norm(x)).split(
            (inner, inner, self.state, self.state, self.heads), dim=-1
        )
        u = F.silu(self.mix(u.transpose(1, 2))[..., :length].transpose(1, 2))
        step = F.softplus(step)
        decay = -torch.exp(self.rate) * step
        u = u.view(batch, chunks, self.chunk, self.heads, -1)
        b = b.reshape(batch, chunks, self.chunk, self.state)
        c = c.reshape(batch, chunks, self.chunk, self.state)
        step = step.view(batch, chunks, self.chunk, self.heads)
        total = decay.view(batch, chunks, self.chunk, self.heads).cumsum(2)
        scores = torch.einsum("bkin,bkjn->bkij", c, b).unsqueeze(-1)
        between = total.unsqueeze(3) - total.unsqueeze(2)
        mask = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(mask[:, :, None], between, -torch.inf).exp() * scores
        fed = u * step.unsqueeze(-1)
        y = torch.einsum("bkijh,bkjhp->bkihp", weights, fed)
        last = total[:, :, -1:]
        states = torch.einsum("bkjn,bkjhp->bkhpn", b, fed * (last - total).exp().unsqueeze(-1))
        carried = torch.zeros_like(states[:, 0])
        before = []
        for index in range(chunks):
            before.append(carried)
            carried = carried * last[:, index, 0, :, None, None].exp() + states[:, index]
        y = y + torch.einsum(
            "bkin,bkhpn->bkihp", c, torch.stack(before, dim=1)
        ) * total.exp().unsqueeze(-1)
        y = (y + u * self.skip[:, None]).reshape(batch, length, inner)
        return x + self.out(self.out_norm(y * F.silu(z)))


class Model(torch.nn.Module):
    def __init__(self, width, heads, state, chunk, blocks):
        super().__init__()
        self.blocks = torch.nn.Sequential(
            *[Block(width, heads, state, chunk) for _ in range(blocks)]
        )
        self.eval()

    def forward(self, x):
        return self.blocks(x)


def get_inputs():
    return [torch.randn(BATCH, LENGTH, WIDTH)]


def get_init_inputs():
    return [WIDTH, HEADS, STATE, CHUNK, BLOCKS]
