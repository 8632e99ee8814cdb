# problem: in_place_twice
# class: of two changes in place the first alone
# says: input 1 is not what the module leaves there
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, state):
        state.mul_(0.5)
        return torch.relu(state + x)
