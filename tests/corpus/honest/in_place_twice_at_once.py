# problem: in_place_twice
# class: two changes in place written at once
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, state):
        state.copy_(torch.add(x, state, alpha=0.5))
        return torch.relu(state)
