"""What eager's convolutions cost, against times measured on an H200 (torch 2.11, TF32, NCHW)."""

import pytest

from kmem.devices import named_target
from kmem.problem.costs.bound import node_costs_ms
from kmem.problem.costs.vendor import vendor_convolution
from kmem.records import Contract
from kmem.testing import trace_source

H200 = named_target("h200")
#: KernelBench problem: (module, input shape, milliseconds). Of level 1 as measured on 2026-11-22,
#: of level 2 on 2026-11-23, less what is predicted of what follows the convolution.
MEASURED = {
    "1-54": ("Conv3d(3, 64, 3, bias=False)", (16, 3, 64, 64, 64), 1.845),
    "1-57": ("ConvTranspose2d(64, 64, 3, bias=False)", (8, 64, 1024, 1024), 5.21),
    "1-58": ("ConvTranspose3d(32, 16, (3, 5, 7), bias=False)", (16, 32, 16, 32, 64), 8.536),
    "1-62": ("Conv2d(32, 64, (5, 9), bias=False)", (8, 32, 512, 512), 2.334),
    "1-64": ("ConvTranspose1d(128, 128, 3, bias=False)", (64, 128, 65536), 4.178),
    "1-67": ("Conv1d(64, 128, 3, bias=False)", (32, 64, 131072), 2.297),
    "1-82": ("Conv2d(64, 64, 3, groups=64, bias=False)", (16, 64, 512, 512), 2.495),
    "1-85": ("Conv2d(128, 128, (3, 7), groups=128, bias=False)", (32, 128, 128, 256), 2.257),
    "1-87": ("Conv2d(64, 128, 1, bias=False)", (16, 64, 1024, 1024), 3.443),
    "2-1": ("Conv2d(64, 128, 3)", (128, 64, 128, 128), 2.944),
    "2-2": ("ConvTranspose2d(64, 64, 3, 2, 1, 1)", (128, 64, 128, 128), 4.851),
    "2-48": ("Conv3d(3, 16, 3)", (128, 3, 16, 64, 64), 2.244),
    "2-67": ("Conv2d(8, 64, 3)", (128, 8, 256, 256), 4.225),
    "2-96": ("ConvTranspose3d(3, 16, 3, 2, 1)", (128, 3, 16, 32, 32), 4.063),
}


@pytest.mark.parametrize("problem", MEASURED)
def test_a_convolution_costs_about_what_eager_takes(problem: str) -> None:
    module, shape, measured_ms = MEASURED[problem]
    (cost,) = node_costs_ms(traced(module, shape), H200, Contract()).values()
    assert measured_ms / 1.8 < cost < measured_ms * 1.8


def test_layouts_change_for_windows_and_a_bias_is_a_pass_of_its_own() -> None:
    plain = traced("Conv2d(64, 64, 3, padding=1, bias=False)", (8, 64, 32, 32))
    biased = traced("Conv2d(64, 64, 3, padding=1)", (8, 64, 32, 32))
    image = 4 * 8 * 64 * 32 * 32
    assert beside(plain) == 2 * 1.5 * 2 * image
    assert beside(biased) == beside(plain) + 2 * image
    assert beside(traced("Conv2d(64, 64, 1, bias=False)", (8, 64, 32, 32))) == 0
    assert beside(traced("Linear(64, 64)", (8, 64))) == 0


def beside(graph) -> float:
    found = (vendor_convolution(graph, node) for node in graph.nodes)
    return sum(each.moved_beside for each in found if each is not None)


def traced(module: str, shape: tuple[int, ...]):
    source = f"""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.{module}

    def forward(self, x):
        return self.layer(x)


def get_inputs():
    return [torch.rand({shape})]
"""
    return trace_source(source)[1]
