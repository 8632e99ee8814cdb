# problem: row_mean
# class: values rounded to a grid that one scale sets for all
# says: family (rows|columns)|not finite|relative error
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        s = x.abs().amax() / 2**30 + 1e-38
        return (torch.round(x / s) * s).mean(dim=-1)
