"""Scale, shift and ReLU written as a tensor of their own before a narrow product reads it."""

import torch

M = 131072
K = 1024
N = 128


class Model(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        return torch.relu(x * scale + shift) @ weight


def make_inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
    # Integer parameters stay small in every test: no sum comes near float16's largest number, where
    # the last bit decides on infinity.
    scale, shift = torch.randint(1, 4, (k,)).half(), torch.randint(-2, 3, (k,)).half()
    return [
        torch.randn(m, k, dtype=torch.float16),
        scale,
        shift,
        torch.randint(-1, 2, (k, n)).half(),
    ]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(M, K, N)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(128, 128, 128)
