"""The erf of a gelu behind rounded products against float64, in the interpreter."""

import pytest
import torch

from kmem.codegen.chains.approximate import approximate
from kmem.codegen.chains.epilogue import Epilogue
from kmem.testing import import_source

GELU = "0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))"
MODULE = """
import torch, triton, triton.language as tl
{helpers}

@triton.jit
def apply(x, out, BLOCK: tl.constexpr):
    acc = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out + tl.arange(0, BLOCK), {text})
"""


def applied(epilogue: Epilogue, x: torch.Tensor) -> torch.Tensor:
    helpers = "\n".join(text for _, text in epilogue.helpers)
    module = import_source(MODULE.format(helpers=helpers, text=epilogue.statements[-1][1]))
    out = torch.empty_like(x)
    module.apply[(1,)](x, out, BLOCK=x.numel())
    return out


def test_a_gelu_errs_by_little_more_than_rounding_and_ends_as_eagers() -> None:
    epilogue = approximate(Epilogue((("z", GELU),)))
    assert "tl.erf(" not in epilogue.statements[0][1]
    x = torch.linspace(-12.0, 12.0, 2**16)
    right = torch.nn.functional.gelu(x.double())
    error = (applied(epilogue, x).double() - right).abs()
    assert (error / x.abs().clamp(min=1.0)).max() < 1.8e-7
    tiny = torch.logspace(-30, -3, 1024)
    assert ((applied(epilogue, tiny) - tiny / 2) / tiny).abs().max() < 1e-3
    ends = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    right = 0.5 * ends * (1.0 + torch.erf(ends))
    assert torch.equal(applied(epilogue, ends).nan_to_num(7.0), right.nan_to_num(7.0))


@pytest.mark.parametrize("text", ["tl.erf(acc)", "1.0 + 2.0 * tl.erf(acc)"])
def test_an_erf_by_itself_stays_exact(text: str) -> None:
    assert approximate(Epilogue((("z", text),))).statements[0][1] == text
