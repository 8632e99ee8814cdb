"""Rotary embedding as Llama's first code has it: pairs of a head's width as complex numbers."""

import torch

BATCH = 2
LENGTH = 12
HEADS = 3
WIDTH = 8


class Model(torch.nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        steps = 1.0 / 10000.0 ** (torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(length).float(), steps)
        turns = torch.polar(torch.ones_like(angles), angles)
        self.register_buffer("turns", turns, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * self.turns[None, : x.shape[1], None, :]
        return torch.view_as_real(turned).flatten(3).type_as(x)


def get_init_inputs() -> list[int]:
    return [LENGTH, WIDTH]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, LENGTH, HEADS, WIDTH)]
