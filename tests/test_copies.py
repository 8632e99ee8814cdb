"""Copies of modules: what a constructor keeps in a lambda uses the copy."""

import torch

from kmem.measure.oracle.running.copies import copy_module


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleDict({"up": torch.nn.Linear(4, 8)})
        m, scale = self.parts, 3.0
        self.up = lambda x, twice=2.0: m.up(x) * scale * twice
        self.plain = torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.up(x))


def test_a_lambda_that_encloses_layers_uses_those_of_the_copy() -> None:
    block, x = Block(), torch.randn(3, 4)
    wide = copy_module(block).double()
    found = wide(x.double())
    assert found.dtype == torch.float64
    assert torch.allclose(found, block(x).double(), atol=1e-6)
    again = copy_module(wide)
    with torch.no_grad():
        again.parts["up"].weight.zero_()
        again.parts["up"].bias.zero_()
    assert not again(x.double()).any() and torch.equal(wide(x.double()), found)
    assert block(x).dtype == torch.float32 and block.up is not wide.up
