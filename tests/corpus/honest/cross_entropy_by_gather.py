# problem: cross_entropy_loss
# class: the ignored class has no loss
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, logits, labels):
        p = torch.log_softmax(logits, -1)
        kept = labels != -100
        picked = p.gather(1, labels.clamp_min(0)[:, None])[:, 0]
        return torch.where(kept, -picked, 0.0)
