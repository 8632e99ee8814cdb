"""Sixty-four independent 256 x 256 products, each launched by itself."""

import torch

COUNT, SIZE = 64, 256


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.stack([a[i] @ b[i] for i in range(a.shape[0])])


def get_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(COUNT, SIZE, SIZE, dtype=torch.float16),
        torch.randn(COUNT, SIZE, SIZE, dtype=torch.float16),
    ]


def get_small_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(3, 64, 64, dtype=torch.float16),
        torch.randn(3, 64, 64, dtype=torch.float16),
    ]
