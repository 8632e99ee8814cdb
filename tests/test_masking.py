"""The oracle's attention: what a mask hides is not read, as in the kernels that eager runs."""

import math

import pytest
import torch
from torch.nn import functional

from kmem.measure.oracle.correctness import measure_error
from kmem.measure.oracle.running.masking import MaskedAttention

NAN, INF = math.nan, math.inf


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(
        dtype
    )


@pytest.mark.parametrize("spoilt", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", ["causal", "bool", "float"])
def test_rows_that_do_not_see_a_value_are_as_without_it(kind: str, spoilt: float) -> None:
    query, key, value = (drawn(2, 3, 9, 8) + number for number in range(3))
    visible = torch.ones(9, 9, dtype=torch.bool).tril()
    told = {
        "causal": {"is_causal": True},
        "bool": {"attn_mask": visible},
        "float": {"attn_mask": torch.where(visible, 0.5, -INF).double()},
    }[kind]
    usual = functional.scaled_dot_product_attention(query, key, value, **told)
    key[0, 1, 5, 2] = value[0, 1, 5, 4] = spoilt
    with MaskedAttention():
        found = functional.scaled_dot_product_attention(query, key, value, **told)
    torch.testing.assert_close(found[0, 1, :5], usual[0, 1, :5])
    assert not torch.isfinite(found[0, 1, 5:, 4]).any()
    usual[0, 1] = found[0, 1]
    torch.testing.assert_close(found, usual, equal_nan=True)


def test_heads_that_share_keys_and_a_scale_of_its_own() -> None:
    query, key, value = drawn(1, 4, 6, 8), drawn(1, 2, 6, 8) + 1, drawn(1, 2, 6, 5) + 2
    told = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    usual = functional.scaled_dot_product_attention(query, key, value, **told)
    value[0, 1, 3] = NAN
    with MaskedAttention():
        found = functional.scaled_dot_product_attention(query, key, value, **told)
    usual[0, 2:, 3:] = NAN
    torch.testing.assert_close(found, usual, equal_nan=True)


def test_a_row_that_sees_nothing_is_zero_and_other_functions_are_left_alone() -> None:
    query, key, value = drawn(4, 8), drawn(5, 8), drawn(5, 3)
    visible = torch.ones(4, 5, dtype=torch.bool)
    visible[1] = False
    value[4, 0] = NAN
    with MaskedAttention():
        found = functional.scaled_dot_product_attention(query, key, value, visible)
        assert torch.isnan(torch.relu(torch.tensor(NAN)))
    assert (found[1] == 0).all() and torch.isnan(found[[0, 2, 3], 0]).all()
    assert torch.isfinite(found[:, 1:]).all()


def test_attention_within_a_module_of_torch() -> None:
    """There the mode itself is off."""
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    x = drawn(1, 5, 8)
    x[0, 4] = NAN
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    with torch.no_grad(), MaskedAttention():
        found, _ = module(x, x, x, attn_mask=hidden, need_weights=False)
    assert torch.isfinite(found[0, :4]).all() and torch.isnan(found[0, 4]).all()
    assert functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention


def test_a_row_that_sees_an_infinity_has_what_the_formula_has() -> None:
    query, key, value = drawn(6, 8), drawn(6, 8), drawn(6, 3)
    value[3] = INF
    with MaskedAttention():
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.isfinite(found[:3]).all() and torch.isposinf(found[3:]).all()


def test_a_kernel_that_skips_what_is_hidden_is_right() -> None:
    """Eager's own blocks make some rows before the NaN NaN; another kernel's make others."""
    query, key, value = (drawn(1, 1, 1300, 16, dtype=torch.float32) for _ in range(3))
    key[0, 0, 1250] = value[0, 0, 1250] = NAN
    eager = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    rows = [
        functional.scaled_dot_product_attention(
            query[..., row : row + 1, :], key[..., : row + 1, :], value[..., : row + 1, :]
        )
        for row in range(1300)
    ]
    ours = torch.cat(rows, -2)
    assert torch.isfinite(ours[0, 0, :1250]).all() and torch.isnan(ours[0, 0, 1250:]).all()
    doubled = [each.double() for each in (query, key, value)]
    with MaskedAttention():
        oracle = functional.scaled_dot_product_attention(*doubled, is_causal=True)
    assert measure_error(ours, oracle, eager).fault is None
    assert measure_error(eager, oracle, eager).fault is None
    assert measure_error(torch.nan_to_num(ours), oracle, eager).fault is not None
