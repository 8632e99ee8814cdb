"""A linear layer on every token, then the mean over tokens."""

import torch
import torch.nn.functional as F

BATCH = 64
TOKENS = 4096
FEATURES = 1024


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias).mean(dim=1)


def make_inputs(batch: int, tokens: int, features: int) -> list[torch.Tensor]:
    # Integer weights are finite in every test: infinite ones meet both signs token by token, but
    # only one sign after the mean.
    weight = torch.randint(-3, 4, (features, features)).float()
    return [torch.randn(batch, tokens, features), weight, torch.randn(features)]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(BATCH, TOKENS, FEATURES)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(2, 300, 48)
