"""A 1x1 convolution through channels-last copies around a matmul: three round trips of the
activation.
"""

import torch

BATCH = 32
CHANNELS = 64
SIZE = 256


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(n * h * w, c)
        return (rows @ weight.t()).view(n, h, w, -1).permute(0, 3, 1, 2).contiguous()


def get_inputs() -> list[torch.Tensor]:
    x = torch.randn(BATCH, CHANNELS, SIZE, SIZE, dtype=torch.float16)
    return [x, torch.randn(CHANNELS, CHANNELS, dtype=torch.float16)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(2, 32, 5, 7, dtype=torch.float16), torch.randn(16, 32, dtype=torch.float16)]
