"""A linear layer with 4096 outputs, which are then summed."""

import torch

ROWS = 32768
FEATURES = 1024
HIDDEN = 4096


class Model(torch.nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sum(dim=1)


def get_init_inputs() -> list[int]:
    return [FEATURES, HIDDEN]


def make_inputs(rows: int) -> list[torch.Tensor]:
    # Integers are finite in every test: infinity meets weights of both signs in the product, but
    # only their sum once they are added up.
    return [torch.randint(-8, 9, (rows, FEATURES)).float()]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(ROWS)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(10)
