"""Moves an input twice in place, and returns what follows from it."""

import torch


class Model(torch.nn.Module):
    def forward(self, x, state):
        state.mul_(0.5).add_(x)
        return torch.relu(state)


def get_inputs():
    return [torch.randn(8, 24), torch.randn(8, 24)]


def get_init_inputs():
    return []
