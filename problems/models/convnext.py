"""ConvNeXt-Tiny on images of 224 pixels, in fp32: depthwise convolutions, norms, wide layers."""

import torch
import torch.nn.functional as F

BATCH = 32
IMAGE = 224
WIDTH = 96
CLASSES = 1000
DEPTHS = (3, 3, 9, 3)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = torch.nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = torch.nn.LayerNorm(width, eps=1e-6)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.scale = torch.nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Model(torch.nn.Module):
    def __init__(self, width, depths, classes):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, width, 4, stride=4)
        stages = []
        for number, depth in enumerate(depths):
            size = width * 2**number
            if number:
                stages.append(torch.nn.Conv2d(size // 2, size, 2, stride=2))
            stages += [Block(size) for _ in range(depth)]
        self.stages = torch.nn.Sequential(*stages)
        self.norm = torch.nn.LayerNorm(size, eps=1e-6)
        self.head = torch.nn.Linear(size, classes)
        self.eval()

    def forward(self, x):
        x = self.stages(self.stem(x))
        return self.head(self.norm(x.mean((2, 3))))


def get_inputs():
    return [torch.randn(BATCH, 3, IMAGE, IMAGE)]


def get_init_inputs():
    return [WIDTH, DEPTHS, CLASSES]
