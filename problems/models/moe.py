"""A mixture of experts with two of eight chosen for each token, in bf16: sizes depend on values."""

import torch
import torch.nn.functional as F

BATCH = 4
LENGTH = 512
WIDTH = 1024
HIDDEN = 3584
EXPERTS = 8
CHOSEN = 2


class Expert(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm = torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


class Model(torch.nn.Module):
    def __init__(self, width, hidden, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.attention = Attention(width)
        self.norm = torch.nn.RMSNorm(width)
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.experts = torch.nn.ModuleList(Expert(width, hidden) for _ in range(experts))
        self.to(torch.bfloat16)
        self.eval()

    def forward(self, x):
        x = self.attention(x)
        flat = self.norm(x).flatten(0, 1)
        weight, expert = self.router(flat).float().softmax(-1).topk(self.chosen)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(flat)
        for number, layer in enumerate(self.experts):
            token, place = torch.where(expert == number)
            y.index_add_(0, token, layer(flat[token]) * weight[token, place, None])
        return x + y.view_as(x)


def get_inputs():
    return [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, CHOSEN]
