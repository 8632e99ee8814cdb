# problem: cross_entropy_loss
# class: the class that is left out counts
# says: ignored index
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        p = torch.log_softmax(logits, -1)
        return -p.gather(1, labels.clamp_min(0)[:, None])[:, 0]
