# problem: cross_entropy_loss
# class: labels are wrapped round
# says: ignored index
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        p = torch.log_softmax(logits, -1)
        return -p.gather(1, (labels % logits.shape[1])[:, None])[:, 0]
