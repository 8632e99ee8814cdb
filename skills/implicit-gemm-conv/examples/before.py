"""A 3x3 convolution of NHWC images as patches and matmul: nine copies of the input are written and
read again.
"""

import torch
import torch.nn.functional as F

BATCH = 64
SIZE = 56
CHANNELS = 128


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        n, h, w, c = x.shape
        # (n, h, w, c, 3, 3), a view of the padded copy
        patches = F.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
        rows = patches.reshape(n * h * w, c * 9)
        return (rows @ weight.reshape(-1, c * 9).t()).view(n, h, w, -1)


def get_inputs() -> list[torch.Tensor]:
    x = torch.randn(BATCH, SIZE, SIZE, CHANNELS, dtype=torch.float16)
    return [x, torch.randn(CHANNELS, CHANNELS, 3, 3, dtype=torch.float16) / 32]


def get_small_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(2, 9, 11, 32, dtype=torch.float16),
        torch.randn(16, 32, 3, 3, dtype=torch.float16) / 16,
    ]
