"""A UNet for segmentation with group norms and skip connections, in fp32."""

import torch
import torch.nn.functional as F

BATCH = 8
IMAGE = 256
WIDTH = 64
GROUPS = 8
CLASSES = 4


class Double(torch.nn.Module):
    def __init__(self, inputs, outputs, groups):
        super().__init__()
        self.one = torch.nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm_one = torch.nn.GroupNorm(groups, outputs)
        self.two = torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_two = torch.nn.GroupNorm(groups, outputs)

    def forward(self, x):
        x = F.silu(self.norm_one(self.one(x)))
        return F.silu(self.norm_two(self.two(x)))


class Model(torch.nn.Module):
    def __init__(self, width, groups, classes):
        super().__init__()
        sizes = [width * 2**level for level in range(4)]
        self.down = torch.nn.ModuleList(
            Double(before, size, groups)
            for before, size in zip([3, *sizes[:-1]], sizes, strict=True)
        )
        self.middle = Double(sizes[-1], 2 * sizes[-1], groups)
        self.widen = torch.nn.ModuleList(
            torch.nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in reversed(sizes)
        )
        self.up = torch.nn.ModuleList(Double(2 * size, size, groups) for size in reversed(sizes))
        self.head = torch.nn.Conv2d(width, classes, 1)
        self.eval()

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, block, skip in zip(self.widen, self.up, reversed(kept), strict=True):
            x = block(torch.cat((skip, widen(x)), dim=1))
        return self.head(x)


def get_inputs():
    return [torch.randn(BATCH, 3, IMAGE, IMAGE)]


def get_init_inputs():
    return [WIDTH, GROUPS, CLASSES]
