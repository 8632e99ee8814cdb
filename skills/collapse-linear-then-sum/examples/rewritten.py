"""A linear layer whose outputs are scaled and added up."""

import torch

ROWS = 6
FEATURES = 20
HIDDEN = 24


class Model(torch.nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum(dim=1, keepdim=True) * 1.5


def get_init_inputs() -> list[int]:
    return [FEATURES, HIDDEN]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FEATURES)]
