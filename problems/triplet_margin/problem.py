"""Triplet margin loss: an anchor should lie nearer its positive than its negative."""

import torch

ROWS = 32768
FEATURES = 8192


class Model(torch.nn.Module):
    def __init__(self, margin):
        super().__init__()
        self.loss = torch.nn.TripletMarginLoss(margin=margin)

    def forward(self, anchor, positive, negative):
        return self.loss(anchor, positive, negative)


def get_inputs():
    return [torch.rand(ROWS, FEATURES), torch.rand(ROWS, FEATURES), torch.rand(ROWS, FEATURES)]


def get_init_inputs():
    return [1.0]
