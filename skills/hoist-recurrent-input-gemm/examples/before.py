"""An Elman cell that multiplies each step's input by its weights inside the loop."""

import torch

STEPS, BATCH, WIDTH = 128, 64, 1024


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w_input = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.w_hidden = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)
        self.bias = torch.nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[1], WIDTH)
        for step in range(x.shape[0]):
            projected = torch.addmm(self.bias, x[step], self.w_input.t())
            h = torch.tanh(projected + h @ self.w_hidden.t())
        return h


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(STEPS, BATCH, WIDTH)]


def get_small_inputs() -> list[torch.Tensor]:
    return [torch.randn(24, 3, WIDTH)]
