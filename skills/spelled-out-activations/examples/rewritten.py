"""A feed-forward layer whose gelu is written out, as BERT's was."""

import math

import torch

ROWS = 24
WIDTH = 20


class Model(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        hidden = hidden * 0.5 * (1.0 + torch.erf(hidden / math.sqrt(2.0)))
        return self.down(hidden)


def get_init_inputs() -> list[int]:
    return [WIDTH]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, WIDTH)]
