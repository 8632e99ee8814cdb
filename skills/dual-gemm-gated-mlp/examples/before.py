"""SwiGLU as two products and an elementwise operator on their written results."""

import torch
import torch.nn.functional as F

M = 16384
K = 256
N = 8192


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ gate) * (x @ up)


def make_inputs(m: int, k: int, n: int) -> list[torch.Tensor]:
    # Integer weights stay small in every test: neither product alone comes near float16's largest
    # number.
    weights = [torch.randint(-1, 2, (k, n)).half() for _ in range(2)]
    return [torch.randn(m, k, dtype=torch.float16), *weights]


def get_inputs() -> list[torch.Tensor]:
    return make_inputs(M, K, N)


def get_small_inputs() -> list[torch.Tensor]:
    return make_inputs(128, 64, 128)
