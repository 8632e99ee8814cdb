"""A dense block of three layers: every layer reads all features before it, put together anew."""

import torch

BATCH = 2
CHANNELS = 4
GROWTH = 4
SIZE = 6


class Model(torch.nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv2d(channels + number * growth, growth, 3, padding=1) for number in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [torch.tanh(x)]
        whole = features[0]
        for layer in self.layers:
            features.append(torch.relu(layer(whole)))
            whole = torch.cat(features, 1)
        return whole


def get_init_inputs() -> list[int]:
    return [CHANNELS, GROWTH]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]
