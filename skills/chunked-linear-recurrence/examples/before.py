"""h = a * h + b over 1024 steps as a Python loop: one launch per step, the state travels through
memory.
"""

import torch

STEPS, CHANNELS = 1024, 65536


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(a[0])
        out = torch.empty_like(a)
        for t in range(a.shape[0]):
            h = torch.addcmul(b[t], a[t], h)
            out[t] = h
        return out


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(STEPS, CHANNELS), torch.randn(STEPS, CHANNELS)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.rand(20, 100), torch.randn(20, 100)]
