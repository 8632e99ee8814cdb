"""Inputs that differ in two elements, told apart by nothing that adds them up."""

import pytest
import torch

from kmem.measure.examine.repeats import in_steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_in_steps_have_one_sum_in_whatever_order(dtype: torch.dtype) -> None:
    drawn = torch.randn(64, 100, generator=torch.Generator().manual_seed(1)).to(dtype)
    values = in_steps(drawn)
    assert values.dtype is dtype
    wide = values.to(torch.promote_types(dtype, torch.float32)).flatten()
    orders = [torch.randperm(wide.numel()) for _ in range(20)]
    assert len({float(wide[order].cumsum(0)[-1]) for order in orders}) == 1
    assert len({float((wide[order] ** 2).cumsum(0)[-1]) for order in orders}) == 1
    assert (values - drawn).abs().max() <= drawn.abs().max() / 8
    assert len(values.unique()) > 8, "it is still about as various"


def test_values_in_steps_keep_signs_zeros_and_what_is_not_finite() -> None:
    drawn = torch.tensor([0.0, 1e-9, -1e-9, 1.0, -2.5, float("nan"), float("inf")])
    values = in_steps(drawn)
    assert torch.equal(values[:5].sign(), drawn[:5].sign())
    assert torch.equal(values[5:].isnan(), drawn[5:].isnan())
    assert values[6] == float("inf")
    assert torch.equal(in_steps(torch.zeros(3)), torch.zeros(3))
    assert (in_steps(torch.rand(100)) < 1.0).all()


def test_values_in_steps_leave_no_interval_that_a_module_may_insist_on() -> None:
    drawn = torch.tensor([0.0, 0.25, 0.7, 1.0, -1.0])
    assert in_steps(drawn).abs().max() <= 1.0
    torch.nn.functional.binary_cross_entropy(in_steps(drawn[:4]), torch.ones(4))
