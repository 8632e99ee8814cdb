"""The convolutions of tools/convolution_table.py: what they are called, and each as a problem."""

from dataclasses import dataclass

_SOURCE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.op = nn.{call}
        self.norm = nn.{norm}
        self.extra = nn.Parameter(torch.randn({extra}))

    def forward(self, x):
        y = self.op({argument})
        return {result}


def get_inputs():
    return [torch.randn({shape}, dtype=torch.{dtype})]


def get_init_inputs():
    return []
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """One row group of the table: a convolution, and what a module does around it.

    `call`: the constructor in torch.nn, without its dtype. `result` is made of y, `argument` of x;
    `norm` is called self.norm there, and `extra` is the shape of the parameter self.extra.
    """

    name: str
    call: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    result: str = "y"
    argument: str = "x"
    norm: str = "Identity()"
    extra: tuple[int, ...] = (1,)

    @property
    def source(self) -> str:
        """The text of a problem file."""
        call = self.call
        if self.dtype != "float32":
            call = f"{call[:-1]}, dtype=torch.{self.dtype})"
        return _SOURCE.format(
            call=call,
            norm=self.norm,
            extra=self.extra,
            argument=self.argument,
            result=self.result,
            shape=self.shape,
            dtype=self.dtype,
        )


def _square(channels: int, pixels: int, images: int, dtype: str = "float32") -> Shape:
    name = f"3x3, {channels} channels, {pixels} pixels"
    shape = (images, channels, pixels, pixels)
    if dtype != "float32":
        name += f", {dtype}"
    return Shape(name, f"Conv2d({channels}, {channels}, 3, padding=1)", shape, dtype)


_LEVEL_2, _LEVEL_2_SHAPE = "Conv2d(64, 128, 3)", (128, 64, 128, 128)
_DEEP = "Conv3d(3, 16, 4)"

#: Those whose figures the README of a release needs come first: a call that is cut short has them.
SHAPES = (
    Shape(
        "level 2's 1: relu and bias",
        _LEVEL_2,
        _LEVEL_2_SHAPE,
        result="F.relu(y) + self.extra",
        extra=(128, 1, 1),
    ),
    Shape("level 2's 4: mish twice", _LEVEL_2, (64, 64, 256, 256), result="F.mish(F.mish(y))"),
    Shape("3x3, 64 to 128 channels, 128 pixels", _LEVEL_2, _LEVEL_2_SHAPE),
    Shape("3x3, 64 to 128 channels, 256 pixels", _LEVEL_2, (64, 64, 256, 256)),
    _square(64, 56, 128),
    _square(128, 56, 128),
    _square(256, 56, 64),
    _square(64, 112, 64),
    _square(128, 112, 64),
    _square(256, 112, 16),
    _square(64, 256, 32),
    _square(128, 256, 16),
    _square(256, 256, 8),
    _square(128, 56, 128, "float16"),
    _square(128, 56, 128, "bfloat16"),
    Shape(
        "ConvTranspose3d 77, bfloat16",
        "ConvTranspose3d(32, 64, 3, 2, 1, dilation=2, bias=False)",
        (16, 32, 16, 32, 32),
        "bfloat16",
    ),
    Shape(
        "ConvTranspose3d 77",
        "ConvTranspose3d(32, 64, 3, 2, 1, dilation=2, bias=False)",
        (16, 32, 16, 32, 32),
    ),
    Shape("3 channels, 3x3", "Conv2d(3, 64, 3, padding=1)", (64, 3, 224, 224)),
    Shape(
        "3 channels, 3x3, bfloat16", "Conv2d(3, 64, 3, padding=1)", (64, 3, 224, 224), "bfloat16"
    ),
    Shape("8 channels, 3x3", "Conv2d(8, 64, 3)", (128, 8, 128, 128)),
    Shape("16 channels, 3x3", "Conv2d(16, 64, 3, padding=1)", (64, 16, 128, 128)),
    Shape("3 channels, 7x7, stride 2", "Conv2d(3, 64, 7, 2, 3)", (128, 3, 224, 224)),
    Shape("3 channels, 11x11, stride 4", "Conv2d(3, 96, 11, 4, 2)", (256, 3, 224, 224)),
    Shape("3 channels in 3-D", "Conv3d(3, 64, 3, bias=False)", (16, 3, 64, 64, 64)),
    Shape("7x7", "Conv2d(64, 64, 7, padding=3)", (64, 64, 56, 56)),
    Shape("11x11", "Conv2d(32, 64, 11, padding=5)", (32, 32, 56, 56)),
    Shape("1x1", "Conv2d(64, 128, 1)", (16, 64, 512, 512)),
    Shape("1x1, deep", "Conv2d(1024, 256, 1)", (64, 1024, 28, 28)),
    Shape("1x1, stride 2", "Conv2d(256, 512, 1, 2)", (64, 256, 56, 56)),
    Shape("stride 2", "Conv2d(64, 128, 3, 2, 1)", (64, 64, 112, 112)),
    Shape("dilated", "Conv2d(64, 128, 3, padding=2, dilation=2)", (32, 64, 128, 128)),
    Shape("grouped", "Conv2d(128, 128, 3, padding=1, groups=4)", (64, 128, 56, 56)),
    Shape(
        "grouped, bfloat16",
        "Conv2d(128, 128, 3, padding=1, groups=4)",
        (64, 128, 56, 56),
        "bfloat16",
    ),
    Shape("depthwise", "Conv2d(64, 64, 3, groups=64, bias=False)", (16, 64, 512, 512)),
    Shape(
        "depthwise, relu",
        "Conv2d(64, 64, 3, padding=1, groups=64)",
        (16, 64, 512, 512),
        result="F.relu(y)",
    ),
    Shape("1-D", "Conv1d(64, 128, 3)", (16, 64, 131072)),
    Shape("1-D causal", "Conv1d(128, 128, 5)", (32, 128, 16384), argument="F.pad(x, (4, 0))"),
    Shape(
        "1-D causal, cut", "Conv1d(128, 128, 5, padding=4)", (32, 128, 16384), result="y[..., :-4]"
    ),
    Shape("3-D", "Conv3d(32, 64, 3, padding=1)", (16, 32, 32, 64, 64)),
    Shape("transposed 2-D, stride 1", "ConvTranspose2d(64, 64, 3)", (32, 64, 256, 256)),
    Shape("transposed 2-D, stride 2", "ConvTranspose2d(64, 64, 3, 2, 1, 1)", (64, 64, 128, 128)),
    Shape(
        "transposed 3-D, stride 1", "ConvTranspose3d(64, 128, 3, bias=False)", (16, 64, 32, 32, 32)
    ),
    Shape("transposed 3-D, stride 2", "ConvTranspose3d(32, 64, 3, 2, 1, 1)", (32, 32, 16, 32, 32)),
    Shape(
        "level 2's 27: hardswish, group norm, mean",
        _DEEP,
        (1024, 3, 16, 32, 32),
        result="self.norm(F.hardswish(y)).mean((2, 3, 4))",
        norm="GroupNorm(4, 16)",
    ),
    Shape(
        "hardswish and group norm",
        _LEVEL_2,
        _LEVEL_2_SHAPE,
        result="self.norm(F.hardswish(y))",
        norm="GroupNorm(8, 128)",
    ),
    Shape("pooling", _LEVEL_2, _LEVEL_2_SHAPE, result="F.max_pool2d(F.relu(y), 2)"),
    Shape("min over channels", _LEVEL_2, _LEVEL_2_SHAPE, result="y.min(1, keepdim=True)[0].tanh()"),
    Shape("softmax over channels", _LEVEL_2, _LEVEL_2_SHAPE, result="y.softmax(1)"),
    Shape("logsumexp", _LEVEL_2, _LEVEL_2_SHAPE, result="y.logsumexp(1, keepdim=True)"),
)
