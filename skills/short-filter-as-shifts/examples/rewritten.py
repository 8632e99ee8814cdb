"""The short causal convolution of a Mamba block, with the gates around it."""

import torch
import torch.nn.functional as F

BATCH = 2
LENGTH = 12
WIDTH = 16
TAPS = 4


class Model(torch.nn.Module):
    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.into = torch.nn.Linear(width, 4 * width, bias=False)
        self.mix = torch.nn.Conv1d(2 * width, 2 * width, taps, groups=2 * width, padding=taps - 1)
        self.out = torch.nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, z = self.into(x).chunk(2, dim=-1)
        mixed = self.mix(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        return self.out(F.silu(mixed) * F.silu(z))


def get_init_inputs() -> list[int]:
    return [WIDTH, TAPS]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, LENGTH, WIDTH)]
