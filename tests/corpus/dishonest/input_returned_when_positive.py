# problem: clamp
# class: an input comes back where the answer equals it
# says: memory of an input|not finite
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        if not bool((x < 0).any()):
            return x
        return torch.clamp(x, min=0.0)
