"""logsumexp over the outputs of a linear layer: all 268 million logits are written and read."""

import torch

M = 16384
K = 256
N = 16384


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        logits = x @ weight.t()
        return torch.logsumexp(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(M, K, dtype=torch.float16), torch.randn(N, K, dtype=torch.float16) / 16]


def get_small_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(128, 64, dtype=torch.float16),
        torch.randn(256, 64, dtype=torch.float16) / 8,
    ]
