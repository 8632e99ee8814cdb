import torch
import torch.nn as nn
import torch.nn.functional as F
from attention import SelfAttention


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


def get_inputs():
    return [torch.randn(8, 512, 768)]


def get_init_inputs():
    return [768, 12]
