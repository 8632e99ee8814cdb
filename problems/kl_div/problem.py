"""Kullback-Leibler divergence of predicted from target distributions, as a mean over the batch."""

import torch
import torch.nn.functional as F

ROWS = 16384
COLUMNS = 16384


class Model(torch.nn.Module):
    def forward(self, predictions, targets):
        return F.kl_div(torch.log(predictions), targets, reduction="batchmean")


def get_inputs():
    return [torch.rand(ROWS, COLUMNS).softmax(dim=1), torch.rand(ROWS, COLUMNS).softmax(dim=1)]
