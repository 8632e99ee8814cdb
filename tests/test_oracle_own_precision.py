"""Running products leave fp32's range for good, on the CPU too."""

from pathlib import Path

import pytest
import torch

from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running import own_precision
from kmem.measure.oracle.running.own_precision import (
    OwnPrecisionProducts,
    one_after_the_other,
    stays_in_range,
)
from kmem.measure.worker.tensors import Placement
from kmem.records import Contract, Problem, Workload

MODULE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.cumprod(x, dim=1)


def get_inputs():
    return [torch.rand(3, 5)]
"""
LEAVING = (1e30, -1e30, 1e-30, 1e-30, 0.5)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_product_that_left_the_range_stays_out(dim: int) -> None:
    values = torch.rand(7, 7) + 0.5
    values.select(1 - dim % 2, 2)[:5] = torch.tensor(LEAVING)
    at_once = torch.cumprod(values, dim)
    assert at_once.isfinite().sum() == 48, "the CPU multiplies in float64, as it always has"
    with OwnPrecisionProducts():
        kept = torch.cumprod(values, dim)
        double = torch.cumprod(values.double(), dim)
    line = kept.select(1 - dim % 2, 2)
    assert line[0] == 1e30
    assert line[1:].isneginf().all()
    others = [place for place in range(7) if place != 2]
    torch.testing.assert_close(
        *(each.movedim(1 - dim % 2, 0)[others] for each in (kept, at_once)), rtol=5e-7, atol=0
    )
    assert torch.equal(double, torch.cumprod(values.double(), dim))
    assert kept.stride() == at_once.stride()


def test_the_reference_multiplies_as_a_gpu_does(tmp_path: Path) -> None:
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    problem = Problem("scan", "scan.py", MODULE)
    reference = Reference(problem, Workload("full"), Contract(), placement, seed=1)
    values = [torch.tensor([LEAVING, (1.0, 2.0, 3.0, 4.0, 5.0), (1e-30, 1e-30, 1e30, 1e30, 2.0)])]
    expected = reference.expect(values, seed=1)
    assert expected.eager[0][0].isfinite().tolist() == [True] + 4 * [False]
    assert expected.eager[0][1].tolist() == [1.0, 2.0, 6.0, 24.0, 120.0]
    assert expected.eager[0][2, 1:].count_nonzero() == 0
    assert expected.oracle[0].isfinite().all()
    reference.close()


def test_what_a_gpu_multiplies_in_another_order_stays_where_it_is_finite() -> None:
    values = torch.tensor([LEAVING, (1.0, 2.0, 3.0, 4.0, 5.0)])
    in_parts = torch.tensor([(1e30, 7.0, 7.0, 7.0, 7.0), (1.0, 2.0, 6.5, 24.0, 120.0)])
    found = one_after_the_other(in_parts, values, 1, is_kept=True)
    assert found is in_parts
    assert found[0].isfinite().tolist() == [True] + 4 * [False]
    assert found[1].tolist() == [1.0, 2.0, 6.5, 24.0, 120.0]


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_many_places_at_a_time_are_what_one_by_one_gives(
    dim: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_precision, "_AT_A_TIME", 64)
    values = 3 * torch.randn(5, 37, 40, generator=torch.Generator().manual_seed(dim))
    values[1, 2, 3], values[2, 3, 4], values[3, 4, 5] = 0.0, float("inf"), float("nan")
    right = given = torch.cumprod(values.double(), dim).float()
    product, right = torch.ones_like(values.select(dim, 0)), right.clone()
    for place in range(values.shape[dim]):
        product = product * values.select(dim, place)
        mine = right.select(dim, place)
        mine.copy_(torch.where(product.isfinite(), mine, product) if is_kept else product)
    found = one_after_the_other(given, values, dim, is_kept=is_kept)
    assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
    assert not right.isfinite().all()


def test_whether_products_stay_in_range_is_known_without_multiplying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_precision, "_AT_A_TIME", 64)
    values = torch.rand(9, 50)
    values[3, 7] = 0.0
    assert stays_in_range(values, 1)
    assert stays_in_range(values, 0)
    assert stays_in_range(torch.tensor([[2.0**126, 2.0, 2.0**-100]]), 1)
    assert not stays_in_range(torch.tensor([[2.0**127, 2.0, 2.0**-100]]), 1)
    assert stays_in_range(torch.tensor([[2.0**127, 2.0, 2.0**-100]]), 0)
    # fp32 rounds 0.6 * 2**-149 up to 2**-149 each time, and comes back: the true product is 2**8
    stuck = torch.tensor([[2.0**-100, 2.0**-45, *[0.6] * 200, *[2.0**100] * 3]])
    assert not stays_in_range(stuck, 1)
    one_by_one = one_after_the_other(torch.zeros_like(stuck), stuck, 1, is_kept=True)
    assert one_by_one[0, -1].isinf()
    values[8, 49] = float("nan")
    assert not stays_in_range(values, 1)
    assert stays_in_range(torch.empty(0, 4), 1)
