import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels, reduction="none")


def get_inputs():
    return [torch.randn(16, 10), torch.randint(0, 10, (16,))]
