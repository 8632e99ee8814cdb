# problem: sigmoid
# class: one tail is taken from the other
# says: lost beside their own size|beside their own size|relative error|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return 1 - torch.sigmoid(-x)
