"""Cosine similarity of rows from three separate sums: temporaries, and both operands read several
times.
"""

import torch

ROWS, COLS = 65536, 2048


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sum(dim=1) / (
            torch.sqrt((a * a).sum(dim=1)) * torch.sqrt((b * b).sum(dim=1))
        )


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(ROWS, COLS), torch.rand(ROWS, COLS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(5, 100), torch.rand(5, 100)]
